"""A small FramePack checkpoint: VAE, encoders and transformer, trained on shapes that move."""
