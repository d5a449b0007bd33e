"""Discrete-event model of a fleet, and the search for the smallest fleet that keeps a promise."""
