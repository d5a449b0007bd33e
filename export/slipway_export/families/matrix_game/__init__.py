"""Matrix-Game 2.0: description, checkpoint layout and networks."""
