"""The demo checkpoint of Matrix-Game 2.0: one small world for each mode."""
