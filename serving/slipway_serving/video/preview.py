"""Preview of latents during denoising: a linear map from their channels to colours, without a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LatentRgb:
    """Linear map from latents to RGB in [-1, 1].

    Attributes:
        weight: Weights of the map, [latent channels, 3].
        bias: Bias of the map, [3].
    """

    weight: tuple[tuple[float, float, float], ...]
    bias: tuple[float, float, float]


def preview(latents: NDArray[np.float32], rgb: LatentRgb) -> NDArray[np.uint8]:
    """Draw the middle latent frame, [latent height, latent width, 3], uint8.

    Args:
        latents: Latents, [1, channels, latent frames, latent height, latent width], float32.
        rgb: Map from latent channels to colours.
    """
    middle = latents[0, :, latents.shape[2] // 2]
    colours = np.einsum("chw,cr->hwr", middle, np.asarray(rgb.weight)) + np.asarray(rgb.bias)
    picture: NDArray[np.uint8] = np.round(np.clip(colours * 0.5 + 0.5, 0, 1) * 255).astype(np.uint8)
    return picture
