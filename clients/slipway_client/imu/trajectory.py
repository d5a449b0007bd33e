"""From signals to a trajectory, by pypose's integrator, and how far it is from the ground truth.

The errors are those of AirIMU's evaluation. Absolute ones (A) are of one integration over the recording,
averaged over its frames; relative ones (R) are where segments end that begin at the ground truth, averaged
over the segments. TE is of the position, m; OE of the rotation, degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pypose
import torch
from pypose.metric.ape_rpe import StampedSE3, compute_error

from slipway_client.imu.recording import Motion, Recording


@dataclass(frozen=True)
class Errors:
    """How far a trajectory is from the ground truth.

    Attributes:
        ate_m: absolute, of the position.
        aoe_deg: absolute, of the rotation.
        rte_m: relative, of the position; None where the recording is shorter than a segment.
        roe_deg: relative, of the rotation.
    """

    ate_m: float
    aoe_deg: float
    rte_m: float | None
    roe_deg: float | None


def integrate(recording: Recording) -> Motion:
    """Integrate a recording's signals, frame by frame.

    Begins at the ground truth's first state; without ground truth at rest in the origin, with the rotation of
    :meth:`Recording.rotation_at`.
    """
    truth = recording.truth
    zeros = np.zeros((1, 3))
    start = Motion(
        truth.positions[:1] if truth else zeros,
        recording.rotation_at(0)[None],
        truth.velocities[:1] if truth else zeros,
    )
    if len(recording) == 1:
        return start
    after = _integrate([recording], [start])
    return Motion(
        *(
            np.concatenate([first, rest[0]])
            for first, rest in zip(vars(start).values(), vars(after).values(), strict=True)
        )
    )


def errors(recording: Recording, motion: Motion, segment_frames: int) -> Errors:
    """Compare a recording's trajectory with its ground truth.

    Args:
        recording: with ground truth, and with the signals that were integrated.
        motion: its trajectory, from :func:`integrate`.
        segment_frames: length of the segments of the relative errors.
    """
    truth = recording.truth
    assert truth is not None
    ate_m, aoe_deg = _mean_errors(motion, truth)
    # A segment of n frames ends in the state after them.
    starts = range(0, len(recording) - segment_frames, segment_frames)
    if not starts:
        return Errors(ate_m, aoe_deg, None, None)
    parts = [_cut(recording, start, start + segment_frames + 1) for start in starts]
    ends = _integrate(parts, [truth.between(start, start + 1) for start in starts])
    wanted = [start + segment_frames for start in starts]
    last = Motion(*(array[:, -1] for array in vars(ends).values()))
    goal = Motion(*(array[wanted] for array in vars(truth).values()))
    return Errors(ate_m, aoe_deg, *_mean_errors(last, goal))


def _cut(recording: Recording, start: int, stop: int) -> Recording:
    frames = slice(start, stop)
    return Recording(recording.name, recording.time_ns[frames], recording.acc[frames], recording.gyro[frames])


def _integrate(recordings: list[Recording], starts: list[Motion]) -> Motion:
    """Integrate recordings of one length; return the states after each frame but the last, [batch, ...]."""

    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([getattr(start, name) for start in starts]))

    steps = torch.from_numpy(np.stack([np.diff(recording.time_s) for recording in recordings]))[..., None]
    acc, gyro = (
        torch.from_numpy(np.stack([getattr(recording, name)[:-1] for recording in recordings]))
        for name in ("acc", "gyro")
    )
    integrator = pypose.module.IMUPreintegrator(prop_cov=False, reset=True).double()
    state = {
        "pos": stacked("positions"),
        "rot": pypose.SO3(stacked("rotations")),
        "vel": stacked("velocities"),
    }
    with torch.no_grad():
        after = integrator(dt=steps, gyro=gyro, acc=acc, init_state=state)
    return Motion(after["pos"].numpy(), after["rot"].tensor().numpy(), after["vel"].numpy())


def _mean_errors(motion: Motion, truth: Motion) -> tuple[float, float]:
    """Return the mean error of the positions, m, and of the rotations, degrees."""
    estimated, reference = (
        StampedSE3(poses_SE3=pypose.SE3(torch.from_numpy(np.hstack([each.positions, each.rotations]))))
        for each in (motion, truth)
    )
    metre, degree = (
        float(compute_error(reference, estimated, kind, otype="Mean")) for kind in ("translation", "degree")
    )
    return metre, degree
