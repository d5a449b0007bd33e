"""Soak test: hours of mixed traffic on a server, with or without kills of its processes."""
