"""Slots to work: which requests of a pipeline all of its processes work on at a time, by priority."""
