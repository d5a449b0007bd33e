"""Matrix-Game 2.0: a world begins with a picture and is steered block by block."""
