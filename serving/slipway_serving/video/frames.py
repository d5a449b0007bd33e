"""Samples of a decoder as pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
"""[frames, height, width, 3], RGB."""


def to_uint8(samples: NDArray[np.floating[Any]]) -> Frames:
    """Turn a decoder's samples into frames, as diffusers' VideoProcessor rounds them.

    Args:
        samples: [1, 3, frames, height, width], floating point, nominally in [-1, 1].

    Returns:
        [frames, height, width, 3], uint8, contiguous.
    """
    unit = np.clip(samples[0].astype(np.float32, copy=False) * np.float32(0.5) + np.float32(0.5), 0, 1)
    return np.ascontiguousarray(np.round(unit * np.float32(255)).astype(np.uint8).transpose(1, 2, 3, 0))
