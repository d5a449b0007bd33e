"""The first picture as its encoders take it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway_serving.framepack_i2v.facts import Picture

Samples = NDArray[np.float32]


def fitted(pixels: NDArray[np.uint8], size_px: tuple[int, int]) -> NDArray[np.uint8]:
    """Cut a picture around its middle to a video's aspect, and resize it as diffusers' VideoProcessor does.

    Args:
        pixels: [height, width, 3], RGB.
        size_px: height and width of the video.

    Returns:
        [*size_px, 3].
    """
    from PIL import Image, ImageOps

    height, width = size_px
    fit = ImageOps.fit(Image.fromarray(pixels), (width, height), method=Image.Resampling.LANCZOS)
    return np.array(fit, np.uint8)


def samples(pixels: NDArray[np.uint8]) -> Samples:
    """Return pixels [height, width, 3] as the VAE takes them: [1, 3, 1, height, width] in [-1, 1]."""
    planes = pixels.transpose(2, 0, 1)[None, :, None].astype(np.float32)
    return np.ascontiguousarray(planes / np.float32(255) * 2 - 1)


def seen(pixels: NDArray[np.uint8], picture: Picture) -> Samples:
    """Return pixels [height, width, 3] as the image encoder takes them: [1, 3, side, side], normalized.

    Args:
        pixels: of the fitted picture: the whole of it is squeezed into the square, as upstream does.
        picture: what the encoder's checkpoint says.
    """
    from PIL import Image

    side = (picture.side_px, picture.side_px)
    square = Image.fromarray(pixels).resize(side, Image.Resampling(picture.resample))
    unit = np.asarray(square, np.float32) / np.float32(255)
    mean, std = (np.array(values, np.float32) for values in (picture.mean, picture.std))
    return np.ascontiguousarray(((unit - mean) / std).transpose(2, 0, 1)[None])
