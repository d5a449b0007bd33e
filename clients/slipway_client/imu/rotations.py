"""Rotations as unit quaternions x, y, z, w: the few operations that recordings need."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def rotate(rotations: Array, vectors: Array) -> Array:
    """Rotate vectors [frames, 3] by rotations [frames, 4]."""
    axis, w = rotations[:, :3], rotations[:, 3:]
    across = 2 * np.cross(axis, vectors)
    return np.asarray(vectors + w * across + np.cross(axis, across))


def inverse(rotations: Array) -> Array:
    """Return the inverses of rotations [frames, 4]."""
    return np.asarray(rotations * np.array([-1.0, -1.0, -1.0, 1.0]))


def from_euler(angles: Array) -> Array:
    """Return rotations about the fixed axes x, y and z, in this order.

    Args:
        angles: [frames, 3], roll, pitch and yaw, rad.
    """
    (sx, sy, sz), (cx, cy, cz) = np.sin(angles.T / 2), np.cos(angles.T / 2)
    return np.stack(
        [
            sx * cy * cz - cx * sy * sz,
            cx * sy * cz + sx * cy * sz,
            cx * cy * sz - sx * sy * cz,
            cx * cy * cz + sx * sy * sz,
        ],
        axis=1,
    )


def slerp(at: NDArray[np.int64], known: NDArray[np.int64], rotations: Array) -> Array:
    """Interpolate rotations along the shortest turn, at constant speed.

    Args:
        at: times, within the known ones.
        known: times of the rotations, rising.
        rotations: [known times, 4].
    """
    after = np.clip(np.searchsorted(known, at, side="right"), 1, len(known) - 1) if len(known) > 1 else 0
    before = after - 1 if len(known) > 1 else after
    first, second = rotations[before], rotations[after]
    if len(known) == 1:
        return np.broadcast_to(rotations[0], (len(at), 4)).copy()
    share = ((at - known[before]) / (known[after] - known[before]))[:, None]
    cosine = np.sum(first * second, axis=1, keepdims=True)
    second = np.where(cosine < 0, -second, second)
    angle = np.arccos(np.clip(np.abs(cosine), 0, 1))
    small = angle < 1e-6
    size = np.where(small, 1, np.sin(angle))
    weights = np.where(small, 1 - share, np.sin((1 - share) * angle) / size)
    mixed = weights * first + np.where(small, share, np.sin(share * angle) / size) * second
    return np.asarray(mixed / np.linalg.norm(mixed, axis=1, keepdims=True))
