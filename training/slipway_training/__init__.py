"""Training of wake words by users."""
