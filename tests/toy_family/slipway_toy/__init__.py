"""A family that lies outside Slipway: a small world that is steered live, and videos, from a picture."""
