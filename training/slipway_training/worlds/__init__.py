"""Synthetic worlds seen from above, in which the view slides as the player walks, drives or runs."""
