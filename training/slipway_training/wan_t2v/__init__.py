"""A small Wan text-to-video checkpoint: VAE, text encoder and two experts, trained on clips of shapes."""
