"""Wan text to video: description, checkpoint layout and networks."""
