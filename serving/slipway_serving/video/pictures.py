"""Preprocessing of a video's pictures for a VAE's encoder and for CLIP's."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Preparation:
    """Parameters of CLIP's image processor, in the order in which it applies them.

    Attributes:
        edge_px: Length to which the shorter side is resized.
        side_px: Side of the square that is cropped from the middle.
        mean: Means of red, green, blue, in [0, 1].
        std: Standard deviations of red, green, blue.
        resample: Number of PIL's resampling filter.
    """

    edge_px: int
    side_px: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int


def to_clip_input(pixels: NDArray[np.uint8], preparation: Preparation) -> NDArray[np.float32]:
    """Convert pixels [height, width, 3] to CLIP's input, [1, 3, side, side], as its image processor does.

    Args:
        pixels: Picture, RGB.
        preparation: Parameters of the checkpoint's image processor.
    """
    from PIL import Image

    height, width = pixels.shape[:2]
    edge, side = preparation.edge_px, preparation.side_px
    size = (edge, edge * height // width) if width < height else (edge * width // height, edge)
    resized = Image.fromarray(pixels).resize(size, Image.Resampling(preparation.resample))
    left, top = (resized.width - side) // 2, (resized.height - side) // 2
    square = resized.crop((left, top, left + side, top + side))
    unit = np.asarray(square, np.float32) / np.float32(255)
    mean, std = (np.array(values, np.float32) for values in (preparation.mean, preparation.std))
    return np.ascontiguousarray(((unit - mean) / std).transpose(2, 0, 1)[None])
