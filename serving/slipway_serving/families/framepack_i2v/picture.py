"""Preprocessing of the first picture for its encoders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.framepack_i2v.facts import Picture

Samples = NDArray[np.float32]


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


def to_vae_input(pixels: NDArray[np.uint8]) -> Samples:
    """Convert pixels [height, width, 3] to the VAE's input, [1, 3, 1, height, width] in [-1, 1]."""
    planes = pixels.transpose(2, 0, 1)[None, :, None].astype(np.float32)
    return np.ascontiguousarray(planes / np.float32(255) * 2 - 1)


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
