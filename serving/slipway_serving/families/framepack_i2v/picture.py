"""Preprocessing of the first picture for its encoders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.framepack_i2v.facts import Picture
from slipway_serving.video.pictures import to_encoder_input

Samples = NDArray[np.float32]


def to_vae_input(pixels: NDArray[np.uint8]) -> Samples:
    """Convert pixels [height, width, 3] to the VAE's input, [1, 3, 1, height, width] in [-1, 1]."""
    return to_encoder_input(pixels)[:, :, None]


def to_image_encoder_input(pixels: NDArray[np.uint8], picture: Picture) -> Samples:
    """Convert pixels [height, width, 3] to the image encoder's input, [1, 3, side, side], normalized.

    Args:
        pixels: Pixels of the fitted picture; the whole of it is resized to the square, as upstream does.
        picture: Preprocessing parameters of the encoder's checkpoint.
    """
    from PIL import Image

    side = (picture.side_px, picture.side_px)
    square = Image.fromarray(pixels).resize(side, Image.Resampling(picture.resample))
    unit = np.asarray(square, np.float32) / np.float32(255)
    mean, std = (np.array(values, np.float32) for values in (picture.mean, picture.std))
    return np.ascontiguousarray(((unit - mean) / std).transpose(2, 0, 1)[None])
