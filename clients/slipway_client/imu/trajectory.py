"""Integration of signals to a trajectory with AirIMU's integrator, and errors against the ground truth.

The integrator is that of pypose, which upstream uses; rotations are SciPy's. The errors are those of AirIMU's
evaluation. Absolute errors (A) compare one integration of the whole recording, averaged over its frames.
Relative errors (R) compare the ends of segments that begin at the ground truth, averaged over the segments.
TE is the error of the position, m; OE is that of the rotation, degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.transform import Rotation

from slipway_client.imu.recording import Array, Motion, Recording

# Upstream's 9.81007 rounded to float32, as in pypose, so that both agree up to rounding.
_GRAVITY_M_S2 = float(np.float32(9.81007))


@dataclass(frozen=True)
class Errors:
    """Errors of a trajectory against the ground truth.

    Attributes:
        ate_m: Absolute error of the position.
        aoe_deg: Absolute error of the rotation.
        rte_m: Relative error of the position; None if the recording is shorter than a segment.
        roe_deg: Relative error of the rotation; None likewise.
    """

    ate_m: float
    aoe_deg: float
    rte_m: float | None
    roe_deg: float | None


def integrate(recording: Recording) -> Motion:
    """Integrate a recording's signals, frame by frame.

    The trajectory begins at the ground truth's first state. Without ground truth it begins at rest in the
    origin, with the rotation of :meth:`Recording.rotation_at`.
    """
    truth = recording.truth
    zeros = np.zeros((1, 3))
    start = Motion(
        truth.positions[:1] if truth else zeros,
        recording.rotation_at(0)[None],
        truth.velocities[:1] if truth else zeros,
    )
    return _integrate(recording, start)


def errors(recording: Recording, motion: Motion, segment_frames: int) -> Errors:
    """Compare a recording's trajectory with its ground truth.

    Args:
        recording: Recording with ground truth and with the integrated signals.
        motion: Trajectory of the recording, from :func:`integrate`.
        segment_frames: Length of the segments of the relative errors, in frames.
    """
    truth = recording.truth
    assert truth is not None
    ate_m, aoe_deg = _mean_errors(motion, truth)
    # A segment of n frames ends in the state after its last frame.
    starts = range(0, len(recording) - segment_frames, segment_frames)
    if not starts:
        return Errors(ate_m, aoe_deg, None, None)
    ends = [
        _integrate(_slice(recording, start, start + segment_frames + 1), truth.between(start, start + 1))
        for start in starts
    ]
    integrated_ends = Motion(*(np.stack([getattr(end, name)[-1] for end in ends]) for name in vars(truth)))
    segment_ends = [start + segment_frames for start in starts]
    true_ends = Motion(*(array[segment_ends] for array in vars(truth).values()))
    return Errors(ate_m, aoe_deg, *_mean_errors(integrated_ends, true_ends))


def _slice(recording: Recording, start: int, stop: int) -> Recording:
    frames = slice(start, stop)
    return Recording(recording.name, recording.time_ns[frames], recording.acc[frames], recording.gyro[frames])


def _integrate(recording: Recording, start: Motion) -> Motion:
    """Return the start state and the states after each frame but the last, [frames, ...].

    The formulas are eq. A7 to A10 of Forster et al., "IMU Preintegration on Manifold", RSS 2015, supplement,
    as in pypose's ``IMUPreintegrator``, which subtracts gravity in the body's frame at the end of a step.
    """
    steps_s = np.diff(recording.time_s)[:, None]
    turns = Rotation.from_rotvec(recording.gyro[:-1] * steps_s)
    rotations = _products(Rotation.concatenate([Rotation.from_quat(start.rotations), turns]))
    before, after = rotations[:-1], rotations[1:]
    up = np.array([0.0, 0.0, _GRAVITY_M_S2])
    acc = before.apply(recording.acc[:-1] - after.inv().apply(up))
    velocities = _sums(start.velocities, acc * steps_s)
    positions = _sums(start.positions, velocities[:-1] * steps_s + acc * steps_s**2 / 2)
    return Motion(positions, rotations.as_quat(), velocities)


def _sums(first: Array, rest: Array) -> Array:
    return np.cumsum(np.concatenate([first, rest]), axis=0)


def _products(rotations: Rotation) -> Rotation:
    """Return the products of the first one, two, three, ... rotations.

    Each pass doubles the number of factors in an entry, so n rotations take log n passes.
    """
    reach = 1
    while reach < len(rotations):
        rotations = Rotation.concatenate([rotations[:reach], rotations[:-reach] * rotations[reach:]])
        reach *= 2
    return rotations


def _mean_errors(motion: Motion, truth: Motion) -> tuple[float, float]:
    """Return the mean error of the positions, m, and of the rotations, degrees."""
    metres = np.linalg.norm(motion.positions - truth.positions, axis=1)
    turned = Rotation.from_quat(motion.rotations).inv() * Rotation.from_quat(truth.rotations)
    return float(metres.mean()), float(np.degrees(turned.magnitude()).mean())
