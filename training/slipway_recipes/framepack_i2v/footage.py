"""Pieces of long clips for the VAE's training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipway_loadtests.pictures.footage import SIDE_PX
from slipway_loadtests.pictures.long_footage import LONG
from slipway_loadtests.pictures.scenes import Subject

# Input of a VAE's step: clips, frames, side. Steps alternate between a decoding tile, whole pictures and cut
# pieces. Whole pictures give normalization layers the same area as in use. A step can see many small cut
# pieces; the VAE needs many samples to learn colours.
_PICTURES, _TILE, _CUT = (12, 1, SIDE_PX), (1, 17, SIDE_PX), (8, 9, SIDE_PX // 2)
_PIECES = (_TILE, _PICTURES, _CUT, _PICTURES)
_MOVING = (_TILE, _CUT, (2, 9, SIDE_PX), _CUT)


def pictures(random: np.random.Generator, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw pictures for a step of the VAE's training, [pictures, 1 frame, side, side, 3]."""
    return LONG.cut(random, choice, *_PICTURES)


def pieces(random: np.random.Generator, step: int, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw pieces of clips for a step of the VAE's training, [pieces, 4k + 1 frames, side, side, 3]."""
    return LONG.cut(random, choice, *_PIECES[step % len(_PIECES)])


def moving(random: np.random.Generator, step: int, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw pieces as :func:`pieces` does, without pictures."""
    return LONG.cut(random, choice, *_MOVING[step % len(_MOVING)])


def tiles(random: np.random.Generator, step: int, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw decoding tiles, as in use, and whole pictures in every fourth step."""
    return LONG.cut(random, choice, *(_PICTURES if step % 4 == 3 else (4, *_TILE[1:])))
