"""Recipe of the Matrix-Game 2.0 demo checkpoint, with one small world for each mode."""
