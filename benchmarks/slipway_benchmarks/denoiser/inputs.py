"""Inputs of one denoiser call, as the served loop makes them; without torch, which a graph does not need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def call_tensors(
    latents: tuple[int, int, int, int, int], text: tuple[int, int], seed: int
) -> dict[str, NDArray[np.float32]]:
    """Make the inputs of one denoiser call as the served loop makes them.

    Args:
        latents: Shape of the latents, [batch, channels, latent frames, height / 8, width / 8]; all rows get
            the same noise.
        text: Rows and width of the embeddings, which are noise too.
        seed: Seed of the noise.
    """
    random = np.random.default_rng(seed)
    batch = latents[0]
    noise = random.standard_normal((1, *latents[1:])).astype(np.float32)
    return {
        "hidden_states": np.repeat(noise, batch, axis=0),
        "timestep": np.full((batch, 1), 500.0, np.float32),
        "encoder_hidden_states": random.standard_normal((batch, *text)).astype(np.float32),
    }
