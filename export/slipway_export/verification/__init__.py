"""Verification: comparison of what is served with PyTorch, at points of the exported ranges."""
