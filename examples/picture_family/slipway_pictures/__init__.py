"""A family in a distribution of its own: pictures of ImageNet's classes, by DiT checkpoints of diffusers."""
