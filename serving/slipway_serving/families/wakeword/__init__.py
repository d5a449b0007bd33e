"""Wake word detection inside Triton: audio features, decisions for each word, and audio streams."""
