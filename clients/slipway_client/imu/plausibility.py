"""Check that a recording's values are plausible in the assumed units.

A file of numbers does not tell whether its times are in microseconds, its rates in deg/s or its accelerations
in g. Values that no sensor measures in the assumed units are refused, and the error names the likely unit. A
unit that the user states is not checked.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from slipway_client.imu.recording import Array, Recording
from slipway_client.imu.units import ACCELERATIONS, TIME_NS, Units
from slipway_serving.protocol.errors import raise_all

_RATES_HZ = (10, 10_000)
# Gravity is part of a measured acceleration, so its median is near 9.8 m/s² unless the sensor falls.
_ACCELERATIONS_M_S2 = (5.0, 20.0)
# No sensor turns at 286 deg/s for half of a recording, and none has an error of 29 deg/s at rest.
_LARGEST_MEDIAN_RAD_S, _LARGEST_AT_REST_RAD_S = 5.0, 0.5
_REST_S, _REST_M_S2 = 1.0, 0.15
# A rate in deg/s is 57 times the rate that the ground truth shows.
_LARGEST_AGAINST_TRUTH, _TRUTH_STEP_S, _SMALLEST_TRUTH_RAD_S = 10.0, 0.25, 0.02
_GAP_FRAMES = 3


def check_units(recording: Recording, stated: Units, time_unit: str | None) -> None:
    """Refuse signals that no sensor measures in the assumed units.

    Args:
        recording: Recording in ns, rad/s and m/s².
        stated: Units that the user stated; they are not checked.
        time_unit: Unit from which the times were converted; None for a file with dates.

    Raises:
        InvalidRequest: Values are implausible; the message names the likely unit.
    """
    problems = []
    if stated.time is None and time_unit is not None:
        problems.append(_time_problem(recording, time_unit))
    if stated.acceleration is None:
        problems.append(_acceleration_problem(recording.acc))
    if stated.rate is None:
        problems.append(_rate_problem(recording))
    raise_all(recording.name, [problem for problem in problems if problem])


def describe_gaps(recording: Recording) -> str:
    """Return a sentence about the gaps in a recording's times, or "" if there are none."""
    steps = np.diff(recording.time_ns)
    if not len(steps):
        return ""
    limit_ns = _GAP_FRAMES * float(np.median(steps))
    if not (count := int((steps > limit_ns).sum())):
        return ""
    longest = int(steps.argmax())
    return (
        f"{recording.name}: {count} gaps of more than {limit_ns / 1e6:.3g} ms, the longest of"
        f" {steps[longest] / 1e9:.3g} s after frame {longest}; the network takes frames for evenly spaced, so"
        " corrections and trajectory are worse from there on"
    )


def _time_problem(recording: Recording, unit: str) -> str:
    """Return a sentence if the sampling rate is implausible in the assumed unit, else an empty string."""
    if len(recording) < 2:
        return ""
    step_ns = float(np.median(np.diff(recording.time_ns)))
    low, high = _RATES_HZ
    if low <= round(1e9 / step_ns) <= high:
        return ""
    rates_hz = {
        other: 1e9 / (step_ns / TIME_NS[unit] * scale) for other, scale in TIME_NS.items() if other != unit
    }
    likely = [
        f"--time-unit {other}, which makes it {rate_hz:.4g} Hz"
        for other, rate_hz in rates_hz.items()
        if low <= round(rate_hz) <= high
    ]
    return (
        f"sampling rate must be {low} to {high} Hz, got {1e9 / step_ns:.4g} Hz from times in {unit};"
        f" try {' or '.join(likely) or f'--time-unit {unit} if it is right'}"
    )


def _acceleration_problem(acc: Array) -> str:
    """Return a sentence if the accelerations are implausible in m/s², else an empty string."""
    median = float(np.median(np.linalg.norm(acc, axis=1)))
    low, high = _ACCELERATIONS_M_S2
    if low <= median <= high:
        return ""
    in_g = low <= median * ACCELERATIONS["g"] <= high
    why = "it looks like g" if in_g else "gravity may have been taken out, which AirIMU needs"
    if median > high:
        why = "it may be in another unit"
    return (
        f"median of |acc| must be {low:g} to {high:g} m/s², since gravity is part of it, got {median:.3g};"
        f" {why}; try --acceleration-unit {'g' if in_g else 'm/s^2 if it is right'}"
    )


def _rate_problem(recording: Recording) -> str:
    """Return a sentence if the rates of rotation are implausible in rad/s, else an empty string."""
    median = float(np.median(np.linalg.norm(recording.gyro, axis=1)))
    if median > _LARGEST_MEDIAN_RAD_S:
        rule, got = f"median of |gyro| must be at most {_LARGEST_MEDIAN_RAD_S:g} rad/s", f"{median:.3g}"
    elif (at_rest := _rate_at_rest(recording)) > _LARGEST_AT_REST_RAD_S:
        rule = f"|gyro| must be at most {_LARGEST_AT_REST_RAD_S:g} rad/s while the acceleration stands still"
        got = f"{at_rest:.3g}"
    elif (ratio := _rate_ratio_to_truth(recording)) > _LARGEST_AGAINST_TRUTH:
        rule = f"|gyro| must be at most {_LARGEST_AGAINST_TRUTH:g} times what the ground truth shows"
        got = f"{ratio:.3g} times"
    else:
        return ""
    return f"{rule}, got {got}; it looks like deg/s; try --rate-unit deg/s, or rad/s if that is right"


def _rate_at_rest(recording: Recording) -> float:
    """Return the mean rate, rad/s, in the second of steadiest acceleration; 0 if the sensor never rests."""
    frames = int(np.searchsorted(recording.time_s, _REST_S))
    seconds = len(recording) // frames if frames > 1 else 0
    if not seconds:
        return 0.0
    shape = (seconds, frames, 3)
    acc, gyro = (signal[: seconds * frames].reshape(shape) for signal in (recording.acc, recording.gyro))
    spread = np.linalg.norm(acc.std(axis=1), axis=1)
    stillest = int(spread.argmin())
    if spread[stillest] > _REST_M_S2:
        return 0.0
    return float(np.linalg.norm(gyro[stillest].mean(axis=0)))


def _rate_ratio_to_truth(recording: Recording) -> float:
    """Return how many times faster the sensor turns than its ground truth; 0 if that hardly turns."""
    step = int(np.searchsorted(recording.time_s, _TRUTH_STEP_S))
    if recording.truth is None or not 0 < step < len(recording):
        return 0.0
    rotations = Rotation.from_quat(recording.truth.rotations[::step])
    times_s = recording.time_s[::step]
    true_rates = (rotations[:-1].inv() * rotations[1:]).magnitude() / np.diff(times_s)
    sums = np.add.reduceat(recording.gyro, range(0, len(recording), step), axis=0)[: len(true_rates)]
    measured = np.linalg.norm(sums / step, axis=1)
    true_rad_s = float(np.sqrt(np.mean(true_rates**2)))
    if true_rad_s < _SMALLEST_TRUTH_RAD_S:
        return 0.0
    return float(np.sqrt(np.mean(measured**2))) / true_rad_s
