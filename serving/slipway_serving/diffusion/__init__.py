"""Parts of diffusion that all model families share: schedules, noise, guidance, loop, caches, prompts."""
