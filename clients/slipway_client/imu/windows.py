"""Correction of a recording, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway_client.client import Client
from slipway_client.imu.recording import Array, Recording
from slipway_serving.families.airimu.request import CorrectionRequest, Corrections
from slipway_serving.protocol.errors import Malformed, raise_all

Signal = NDArray[np.float32]
CorrectWindow = Callable[[Signal, Signal, Signal], Mapping[str, Signal]]
"""Callback that corrects one window. It takes `acc` and `gyro`, [frames, 3], and the first frame's rotation,
[4], and returns the outputs of the model by name: `correction_acc` and `correction_gyro`, and perhaps
`acc_cov` and `gyro_cov`, [frames, 3] each."""


@dataclass(frozen=True)
class CorrectionWindow:
    """Range of frames that are corrected together.

    Attributes:
        start: First frame.
        stop: Frame after the last one.
        first_used: First frame whose correction is used; the frames before it belong to an earlier window and
            are context.
    """

    start: int
    stop: int
    first_used: int


@dataclass(frozen=True)
class CorrectedRecording:
    """Result of a correction.

    Attributes:
        recording: Recording with the corrected signals.
        windows: Number of windows.
        variances: Variances of the rate of rotation and of the acceleration, [frames, 3] each; empty for a
            network without covariances.
    """

    recording: Recording
    windows: int
    variances: tuple[Array, ...]


def split_windows(frames: int, size: int, step: int) -> Iterator[CorrectionWindow]:
    """Cut a recording into windows; the last one may be shorter.

    Args:
        frames: Number of frames of the recording.
        size: Length of a window in frames.
        step: Distance between the first frames of neighbouring windows.

    Raises:
        InvalidRequest: A size is below 1, or frames would be left out between windows.
    """
    problems = []
    if size < 1:
        problems.append(f"--window-size must be 1 or more, got {size}")
    if not 1 <= step <= max(size, 1):
        problems.append(f"--step-size must be 1 to the window size, {size}, got {step}")
    raise_all("imu", problems)
    start = covered = 0
    while covered < frames:
        stop = min(start + size, frames)
        yield CorrectionWindow(start, stop, covered)
        start, covered = start + step, stop


def correct(
    recording: Recording, correct_window: CorrectWindow, size: int, step: int, report: Callable[[int], None]
) -> CorrectedRecording:
    """Correct a recording.

    Args:
        recording: Recording with the raw signals.
        correct_window: Callback that corrects one window.
        size: Length of a window in frames.
        step: Distance between the first frames of neighbouring windows.
        report: Callback that receives the number of finished frames.
    """
    parts: dict[str, list[Signal]] = {}
    count = 0
    for window in split_windows(len(recording), size, step):
        outputs = correct_window(*window_inputs(recording, window))
        for name, output in outputs.items():
            parts.setdefault(name, []).append(output[window.first_used - window.start :])
        count += 1
        report(window.stop)
    combined = {name: np.concatenate(part).astype(np.float64) for name, part in parts.items()}
    signals = recording.with_signals(
        recording.acc + combined["correction_acc"], recording.gyro + combined["correction_gyro"]
    )
    variances = tuple(combined[name] for name in ("gyro_cov", "acc_cov") if name in combined)
    return CorrectedRecording(signals, count, variances)


def window_inputs(recording: Recording, window: CorrectionWindow) -> tuple[Signal, Signal, Signal]:
    """Return the arguments of :data:`CorrectWindow` for a window: its signals and its first rotation."""
    acc, gyro = (signal[window.start : window.stop] for signal in (recording.acc, recording.gyro))
    rotation = recording.rotation_at(window.start)
    return acc.astype(np.float32), gyro.astype(np.float32), rotation.astype(np.float32)


def server_corrector(client: Client) -> CorrectWindow:
    """Return a callback that corrects a window with a running server."""

    def correct_window(acc: Signal, gyro: Signal, rotation: Signal) -> Mapping[str, Signal]:
        request = CorrectionRequest(acc[None], gyro[None], rotation[None])
        (corrections,) = client.generate(request)
        assert isinstance(corrections, Corrections)
        if corrections.correction_acc.shape[:2] != (1, len(acc)):
            raise Malformed(
                f"{request.model}: correction_acc must have the {len(acc)} frames of the request, got shape"
                f" {list(corrections.correction_acc.shape)}; see the server's log"
            )
        outputs = {
            "correction_acc": corrections.correction_acc,
            "correction_gyro": corrections.correction_gyro,
            "acc_cov": corrections.acc_cov,
            "gyro_cov": corrections.gyro_cov,
        }
        return {name: output[0] for name, output in outputs.items() if output is not None}

    return correct_window
