"""Recipe of a small Wan text-to-video checkpoint: VAE, text encoder and two experts, trained on shapes."""
