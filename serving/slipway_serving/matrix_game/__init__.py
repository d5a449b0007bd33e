"""Matrix-Game 2.0: worlds that begin with a picture and are steered block by block."""
