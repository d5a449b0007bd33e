"""Recordings of inertial sensors: reading, synthesis, correction in windows, integration and evaluation."""
