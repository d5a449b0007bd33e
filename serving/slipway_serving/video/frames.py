"""Conversion of a decoder's samples to frames of RGB pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Frames = NDArray[np.uint8]
"""Frames of a video, [frames, height, width, 3], RGB."""


def to_uint8(samples: NDArray[np.floating[Any]]) -> Frames:
    """Convert a decoder's samples to frames, with the rounding of diffusers' VideoProcessor.

    Args:
        samples: Samples, [1, 3, frames, height, width], floating point, nominally in [-1, 1].

    Returns:
        Frames, [frames, height, width, 3], uint8, contiguous.
    """
    unit = np.clip(samples[0].astype(np.float32, copy=False) * np.float32(0.5) + np.float32(0.5), 0, 1)
    return np.ascontiguousarray(np.round(unit * np.float32(255)).astype(np.uint8).transpose(1, 2, 3, 0))
