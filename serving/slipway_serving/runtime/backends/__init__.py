"""Slipway's own backends, in Python; each is a folder with the `model.py` that Triton loads."""
