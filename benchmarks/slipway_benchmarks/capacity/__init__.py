"""Comparison of the capacity model with a real Triton, and its answers about fleets."""
