"""Recipe of a small FramePack checkpoint: VAE, encoders and transformer, trained on moving shapes."""
