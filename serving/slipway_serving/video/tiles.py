"""Decoding a window of latent frames in tiles of time that overlap and are blended, as diffusers' VAE does.

A decoder that sees all frames before a frame would need the memory of a whole window; in tiles it needs that
of a few. Each tile but the first begins with a frame that has seen nothing before it, which is dropped; the
frames after it are blended with those that the tile before gave for the same time.
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
    """Decode latent frames in tiles, each blended with the one before.

    Args:
        latents: [batch, channels, latent frames, height, width].
        decode: gives the frames of a tile, [batch, 3, frames_per_latent * (n - 1) + 1, height, width] for n
            latent frames.
        frames: latent frames of a tile at most.
        stride: latent frames from a tile's begin to the next one's.
        blended: video frames that two tiles have in common, without the one that is dropped.
        frames_per_latent: video frames of each latent frame but the first, which is one.

    Yields:
        Neighbouring frames in the order of time, altogether frames_per_latent * (latent frames - 1) + 1.
    """
    count = latents.shape[2]
    if count < frames:
        yield decode(latents)
        return
    before: Samples | None = None
    # A tile of one latent frame after the first would be all dropped.
    for start in range(0, max(1, count - 1), stride):
        tile = decode(np.ascontiguousarray(latents[:, :, start : start + frames]))
        kept = stride * frames_per_latent
        if before is None:
            kept += 1
        else:
            tile = tile[:, :, 1:].copy()
            _blend(before, tile, blended)
        before = tile
        yield tile[:, :, :kept]


def _blend(before: Samples, tile: Samples, blended: int) -> None:
    """Fade, in place, from the last frames of the tile before to the first ones of a tile."""
    extent = min(before.shape[2], tile.shape[2], blended)
    if extent == 0:
        return
    share = (np.arange(extent, dtype=tile.dtype) / extent)[:, None, None]
    tile[:, :, :extent] = before[:, :, -extent:] * (1 - share) + tile[:, :, :extent] * share
