"""Clips as long as a video of four sections, with one motion from start to end.

The pace of each motion is fixed. A section that is generated first, far from the picture, can only predict
the shape's later position if every shape moves at the same pace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.framepack_i2v.request import FRAMES_PER_LATENT, SECTION_FRAMES
from slipway_training.shapes.clips import SIDE_PX, Footage
from slipway_training.shapes.scenes import Subject, Ways

# Four sections are 5 s, the default of a request.
SECTIONS = 4
LATENT_FRAMES = SECTIONS * SECTION_FRAMES + 1
FRAMES = (LATENT_FRAMES - 1) * FRAMES_PER_LATENT + 1
# A bounce lasts one section, and a shape turns by 4 degrees per frame.
STEADY = Ways(
    reach=(0.6, 0.6),
    turn_rad=(3.2 * math.pi, 3.2 * math.pi),
    hop=(0.25, 0.25),
    hops=(SECTIONS, SECTIONS),
    smallest=(0.5, 0.5),
)
LONG = Footage(FRAMES, STEADY)
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
