"""Preprocessing of a video's first picture for a VAE's encoder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def crop_and_resize(pixels: NDArray[np.uint8], size_px: tuple[int, int]) -> NDArray[np.uint8]:
    """Crop a picture around its centre to a video's aspect, and resize it as diffusers' VideoProcessor does.

    Args:
        pixels: Picture, [height, width, 3], RGB.
        size_px: Height and width of the video.

    Returns:
        Pixels, [*size_px, 3].
    """
    from PIL import Image, ImageOps

    height, width = size_px
    fit = ImageOps.fit(Image.fromarray(pixels), (width, height), method=Image.Resampling.LANCZOS)
    return np.array(fit, np.uint8)


def to_encoder_input(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert pixels [height, width, 3] to an encoder's input, [1, 3, height, width] in [-1, 1]."""
    planes = pixels.transpose(2, 0, 1)[None].astype(np.float32)
    return np.ascontiguousarray(planes / np.float32(255) * 2 - 1)
