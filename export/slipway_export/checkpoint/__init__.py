"""Checkpoints: their files and key layouts, read tensor by tensor."""
