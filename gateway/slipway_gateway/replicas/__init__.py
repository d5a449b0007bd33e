"""Triton servers behind the gateway: their addresses, their state, and their free places."""
