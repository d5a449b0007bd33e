"""Pieces of short clips for the VAE's training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipway_loadtests.pictures.footage import SHORT, SIDE_PX
from slipway_loadtests.pictures.scenes import Subject

# Input of a VAE's step: clips, frames, side. Every fourth step on clips sees a longer piece at full size.
_PICTURES = (32, 1, 32)
_PIECES = (6, 9, 32)
_WHOLE, _WHOLE_EVERY = (1, 17, SIDE_PX), 4


def pictures(random: np.random.Generator, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw pieces of pictures for a step of the VAE's training, [pieces, 1 frame, side, side, 3]."""
    return SHORT.cut(random, choice, *_PICTURES)


def pieces(random: np.random.Generator, step: int, choice: Sequence[Subject]) -> NDArray[np.uint8]:
    """Draw pieces of clips for a step of the VAE's training.

    Args:
        random: Generator of the scenes and of the time and place of the cuts.
        step: Number of the step, which decides the size of the pieces.
        choice: Subjects to choose from.

    Returns:
        Pieces, [pieces, 4k + 1 frames, side, side, 3].
    """
    return SHORT.cut(random, choice, *(_PIECES if step % _WHOLE_EVERY else _WHOLE))
