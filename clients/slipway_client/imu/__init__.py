"""Recordings of inertial sensors: read, made, corrected in windows, integrated and measured."""
