"""A small world of coloured shapes that move: clips, captions, and who can tell what a clip shows."""
