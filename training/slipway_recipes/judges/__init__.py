"""Judges of what a clip of shapes shows, and of whether a world obeys its keys."""
