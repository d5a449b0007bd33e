"""Inertial signals as a request brings them, checked: what both served models take.

All broken rules are named in one message, before anything is computed or any sequence is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import raise_all
from slipway_serving.program import Tensors

# A quaternion that was stored with four decimals is off by this.
_UNIT_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Signals:
    """Recordings of one length, or chunks of them.

    Attributes:
        frames: [batch, frames, 6], float32: acceleration, m/s², then rate of rotation, rad/s.
        rotations: [batch, 4], float32: unit quaternions x, y, z, w from the sensor to the world at the first
            frame; None where the request has none.
    """

    frames: NDArray[np.float32]
    rotations: NDArray[np.float32] | None


def read_signals(tensors: Tensors, where: str, frames: range, fix: str) -> Signals:
    """Check the tensors of a request.

    Args:
        tensors: `acc` and `gyro` [batch, frames, 3] and perhaps `initial_rotation` [batch, 4], float32.
        where: the model that was asked.
        frames: how many of them one request may bring.
        fix: what to do with more.

    Raises:
        InvalidRequest: naming every broken rule.
    """
    problems = [
        problem for name in ("acc", "gyro") for problem in _signal_problems(name, tensors, frames, fix)
    ]
    if not problems and tensors["acc"].shape != tensors["gyro"].shape:
        problems.append(
            "acc and gyro must have the same frames, got shapes "
            f"{list(tensors['acc'].shape)} and {list(tensors['gyro'].shape)}"
        )
    rotations = tensors.get("initial_rotation")
    if rotations is not None and not problems:
        problems += _rotation_problems(rotations, len(tensors["acc"]))
    raise_all(where, problems)
    return Signals(np.concatenate([tensors["acc"], tensors["gyro"]], axis=2), rotations)


def _signal_problems(name: str, tensors: Tensors, allowed: range, fix: str) -> list[str]:
    signal = tensors.get(name)
    if signal is None:
        return [f"{name} must be given, got nothing; try [batch, frames, 3] in float32"]
    if signal.ndim != 3 or signal.shape[2] != 3 or signal.dtype != np.float32:
        return [f"{name} must be float32 [batch, frames, 3], got {signal.dtype} {list(signal.shape)}"]
    batch, frames, _ = signal.shape
    if frames not in allowed or not batch:
        rule = f"{name} must have {allowed[0]} to {allowed[-1]} frames, got shape {list(signal.shape)}"
        return [f"{rule}; try {fix}" if frames > allowed[-1] else rule]
    bad = np.argwhere(~np.isfinite(signal))
    if len(bad):
        return [f"{name} must be finite, got {signal[tuple(bad[0])]} at frame {bad[0][1]}"]
    return []


def _rotation_problems(rotations: NDArray[np.float32], batch: int) -> list[str]:
    if rotations.shape != (batch, 4):
        return [f"initial_rotation must have shape {[batch, 4]}, got {list(rotations.shape)}"]
    norms = np.linalg.norm(rotations.astype(np.float64), axis=1)
    # Written so that not-a-number is refused too.
    bad = norms[~(np.abs(norms - 1) <= _UNIT_TOLERANCE)]
    if bad.size:
        return [f"initial_rotation must be unit quaternions x, y, z, w, got a norm of {bad[0]:.4g}"]
    return []
