"""Layouts of checkpoints other than diffusers', read in place and presented as diffusers' layout."""
