"""Training of wake words by users, and of the demo checkpoints."""
