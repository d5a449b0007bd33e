"""Preprocessing of a world's first picture, and each block's inputs from its latents."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.matrix_game.facts import Latents

Array = NDArray[np.float32]


def crop_and_resize(pixels: NDArray[np.uint8], picture_px: tuple[int, int]) -> NDArray[np.uint8]:
    """Crop a picture around its centre to the aspect of a world's frames, and resize it to their size.

    This follows upstream's inference: the sides of the crop are rounded down, and Pillow filters over all
    pixels that one pixel of the result covers.

    Args:
        pixels: Picture, [height, width, 3], RGB.
        picture_px: Height and width of a frame.

    Returns:
        Pixels, [*picture_px, 3].
    """
    from PIL import Image

    height, width, _ = pixels.shape
    to_height, to_width = picture_px
    if height / width > to_height / to_width:
        cut_width, cut_height = width, int(width * to_height / to_width)
    else:
        cut_width, cut_height = int(height * to_width / to_height), height
    left, top = (width - cut_width) / 2, (height - cut_height) / 2
    cut = Image.fromarray(pixels).crop((left, top, left + cut_width, top + cut_height))
    return np.array(cut.resize((to_width, to_height), Image.Resampling.BILINEAR), np.uint8)


def to_encoder_input(pixels: NDArray[np.uint8]) -> Array:
    """Convert pixels [height, width, 3] to the encoders' input, [1, 3, height, width] in [-1, 1]."""
    planes = pixels.astype(np.float32).transpose(2, 0, 1)[None]
    return np.ascontiguousarray(planes / np.float32(127.5) - 1)


def conditions(picture: Array, start: int, latents: Latents) -> Array:
    """Return `cond_concat` of a block: a mask of the world's first latent frame, and the picture's latents.

    Args:
        picture: Latents of the picture, [1, channels, picture frames, height, width]; the last frame stands
            for all later ones.
        start: Place of the block's first latent frame in the world.
        latents: Sizes of the latents.

    Returns:
        Conditions, [1, mask channels + channels, block frames, height, width].
    """
    places = np.arange(start, start + latents.block_frames)
    picture_latents = picture[:, :, np.minimum(places, latents.picture_frames - 1)]
    mask = (places == 0).astype(np.float32)[None, None, :, None, None]
    shape = (1, latents.mask_channels, latents.block_frames, latents.height, latents.width)
    return np.concatenate([np.broadcast_to(mask, shape), picture_latents], axis=1)
