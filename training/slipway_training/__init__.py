"""Training of the networks that users make themselves."""
