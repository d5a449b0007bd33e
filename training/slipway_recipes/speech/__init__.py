"""Recipes of the wake word demo checkpoints, trained on synthetic speech in simulated rooms."""
