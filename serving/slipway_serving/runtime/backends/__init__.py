"""Backends of ours for the embedded server; each is a folder with the `model.py` that Triton loads."""
