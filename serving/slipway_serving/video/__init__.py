"""Video in parts, free of any family: the causal decoder, previews, MP4, delivery."""
