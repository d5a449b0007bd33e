"""Measurement of a network's effect on trajectories, for sensors and motions that no training drew."""

from __future__ import annotations

from typing import Any

import numpy as np

from slipway_client.imu.recording import Recording
from slipway_client.imu.synthetic import PERFECT, make_recording
from slipway_client.imu.trajectory import errors, integrate
from slipway_client.imu.windows import CorrectWindow, correct
from slipway_recipes.airimu.simulation import RATE_HZ, drawn_sensor, drawn_style

SECONDS, RECORDINGS, SEGMENT_FRAMES = 60.0, 120, 200
# Seed of the measurements. No training uses this seed, so no training draws the same examples.
_UNSEEN = 2**63
_SEED = 2**31


def figures(
    correct_window: CorrectWindow, recordings: int = RECORDINGS, seconds: float = SECONDS
) -> dict[str, float]:
    """Correct unseen recordings, each as a whole, and compare their errors before and after.

    Args:
        correct_window: Function that corrects a window, here a whole recording.
        recordings: Number of recordings, each with its own sensor and its own motion, which begins at rest.
        seconds: Length of each recording, in seconds.

    Returns:
        The mean over the recordings of each error of :class:`~slipway_client.imu.trajectory.Errors`, raw and
        corrected, and the ratio of corrected to raw; the share of recordings whose ATE is at least halved;
        and the mean over frames and axes of squared error ÷ variance, where 1 is calibrated.
    """
    raw, corrected, normalized = [], [], []
    for index in range(recordings):
        seen, true = unseen_recording(index, seconds)
        done = correct(seen, correct_window, len(seen), len(seen), lambda frames: None)
        raw.append(errors(seen, integrate(seen), SEGMENT_FRAMES))
        corrected.append(errors(done.recording, integrate(done.recording), SEGMENT_FRAMES))
        gyro_variance, acc_variance = done.variances
        normalized.append(
            [
                np.mean((done.recording.acc - true.acc) ** 2 / acc_variance),
                np.mean((done.recording.gyro - true.gyro) ** 2 / gyro_variance),
            ]
        )
    found: dict[str, Any] = {}
    for name in ("ate_m", "aoe_deg", "rte_m", "roe_deg"):
        before, after = (np.array([getattr(each, name) for each in of]) for of in (raw, corrected))
        found |= {
            f"raw_{name}": before.mean(),
            f"corrected_{name}": after.mean(),
            f"{name.split('_')[0]}_share": after.mean() / before.mean(),
        }
        if name == "ate_m":
            found["recordings_halved"] = np.mean(after <= before / 2)
    acc, gyro = np.mean(normalized, axis=0)
    found |= {"acc_normalized_error": acc, "gyro_normalized_error": gyro}
    return {name: float(value) for name, value in found.items()}


def unseen_recording(index: int, seconds: float) -> tuple[Recording, Recording]:
    """Return a recording of an unseen sensor and motion, and the same motion by a perfect sensor."""
    random = np.random.default_rng([_UNSEEN, index])
    sensor, style = drawn_sensor(random), drawn_style(random)
    seed = int(random.integers(_SEED))
    seen, true = (make_recording(seconds, RATE_HZ, seed, each, style) for each in (sensor, PERFECT))
    return seen, true
