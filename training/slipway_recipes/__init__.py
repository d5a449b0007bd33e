"""Recipes that train the demo checkpoints."""
