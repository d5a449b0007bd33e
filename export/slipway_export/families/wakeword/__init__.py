"""Wake words: description, checkpoint layout and networks."""
