"""Fields and requests that diffusion models share."""
