"""Drawn pictures that the demo checkpoints know: coloured shapes in motion, and worlds seen from above."""
