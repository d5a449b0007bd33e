"""A small FramePack checkpoint: VAE, encoders of text and picture, and transformer, trained on moving shapes."""
