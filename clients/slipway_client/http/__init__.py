"""Triton's HTTP protocol: transports, messages and connections."""
