"""A family that lies outside Slipway: a small world that begins with a picture and is steered live."""
