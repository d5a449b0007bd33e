"""Decoding of a window of latent frames in blended tiles that overlap in time, like in diffusers' VAE.

A decoder that sees all earlier frames would need memory for a whole window; in tiles it needs memory for a
few frames. Each tile except the first begins with a frame decoded without earlier ones, which is dropped. The
frames after it are blended with the frames of the previous tile for the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.floating[Any]]


def decode_tiles(
    latents: Samples,
    decode: Callable[[Samples], Samples],
    *,
    frames: int,
    stride: int,
    blended: int,
    frames_per_latent: int,
) -> Iterator[Samples]:
    """Decode latent frames in tiles and blend each tile with the previous one.

    Args:
        latents: Latents, [batch, channels, latent frames, height, width].
        decode: Function that returns the frames of a tile of n latent frames,
            [batch, 3, frames_per_latent * (n - 1) + 1, height, width].
        frames: Largest number of latent frames of a tile.
        stride: Number of latent frames from the start of a tile to the start of the next one.
        blended: Number of video frames that two tiles have in common, without the dropped one.
        frames_per_latent: Number of video frames per latent frame; the first latent frame has one.

    Yields:
        Consecutive frames in the order of time, frames_per_latent * (latent frames - 1) + 1 in total.
    """
    count = latents.shape[2]
    if count < frames:
        yield decode(latents)
        return
    before: Samples | None = None
    # A later tile of a single latent frame would have only the frame that is dropped.
    for start in range(0, max(1, count - 1), stride):
        tile = decode(np.ascontiguousarray(latents[:, :, start : start + frames]))
        frame_count = stride * frames_per_latent
        if before is None:
            frame_count += 1
        else:
            tile = tile[:, :, 1:].copy()
            _blend(before, tile, blended)
        before = tile
        yield tile[:, :, :frame_count]


def _blend(before: Samples, tile: Samples, blended: int) -> None:
    """Blend the first frames of a tile with the last ones of the previous tile, in place."""
    extent = min(before.shape[2], tile.shape[2], blended)
    if extent == 0:
        return
    share = (np.arange(extent, dtype=tile.dtype) / extent)[:, None, None]
    tile[:, :, :extent] = before[:, :, -extent:] * (1 - share) + tile[:, :, :extent] * share
