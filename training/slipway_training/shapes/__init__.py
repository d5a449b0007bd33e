"""Synthetic clips of moving coloured shapes, their captions, and a classifier of what a clip shows."""
