"""Diffusion in parts, free of any family: schedules, noise, guidance, the loop, caches, prompts."""
