"""Reads recordings in the layouts of EuRoC MAV and of KITTI's raw data, and writes EuRoC's."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from slipway_client.imu.recording import Array, Motion, Recording
from slipway_serving.errors import InvalidRequest, raise_all

_EUROC_COLUMNS = (
    "#timestamp [ns]",
    *(f"w_RS_S_{axis} [rad s^-1]" for axis in "xyz"),
    *(f"a_RS_S_{axis} [m s^-2]" for axis in "xyz"),
)
_VARIANCE_COLUMNS = (
    *(f"var_w_{axis} [rad^2 s^-2]" for axis in "xyz"),
    *(f"var_a_{axis} [m^2 s^-4]" for axis in "xyz"),
)
_TRUTH_COLUMNS = (
    "#timestamp",
    *(f"p_RS_R_{axis} [m]" for axis in "xyz"),
    *(f"q_RS_{axis} []" for axis in "wxyz"),
    *(f"v_RS_R_{axis} [m s^-1]" for axis in "xyz"),
)
_EUROC_SIGNALS = ("mav0/imu0/data.csv", "imu0/data.csv")
_EUROC_TRUTH = "state_groundtruth_estimate0/data.csv"
_EARTH_RADIUS_M = 6378137.0


def read_recording(path: Path, ground_truth: Path | None = None) -> Recording:
    """Read a recording.

    Args:
        path: EuRoC's `imu0/data.csv` or a folder around it, or a drive of KITTI's raw data, whose `oxts`
            holds both the signals and the ground truth.
        ground_truth: EuRoC's `state_groundtruth_estimate0/data.csv`; found by itself beside `imu0` where
            `path` is a folder. The recording is cut to the time that it covers.

    Raises:
        InvalidRequest: there is no such recording, or a file of it cannot be read.
    """
    if (path / "oxts").is_dir():
        if ground_truth is not None:
            raise InvalidRequest(f"{path}: --ground-truth must be left out for KITTI, got {ground_truth}")
        return _kitti(path / "oxts", path.name)
    signals = path
    if path.is_dir():
        found = [path / name for name in _EUROC_SIGNALS if (path / name).is_file()]
        if not found:
            raise InvalidRequest(
                f"{path}: must be EuRoC's imu0/data.csv or have it as {' or '.join(_EUROC_SIGNALS)}, or have"
                " KITTI's oxts, got a folder without them"
            )
        signals = found[0]
        beside = signals.parents[1] / _EUROC_TRUTH
        if ground_truth is None and beside.is_file():
            ground_truth = beside
    return _euroc(signals, ground_truth, path.name)


def write_signals(file: BinaryIO, recording: Recording, variances: Sequence[Array] = ()) -> None:
    """Write signals in EuRoC's layout.

    Args:
        file: open for writing.
        recording: whose signals to write.
        variances: of the rate of rotation and of the acceleration, [frames, 3] each: six columns more.
    """
    columns = _EUROC_COLUMNS + (_VARIANCE_COLUMNS if variances else ())
    _write(file, columns, recording.time_ns, np.hstack([recording.gyro, recording.acc, *variances]))


def write_euroc(folder: Path, recording: Recording) -> None:
    """Write a recording with its ground truth as a folder in EuRoC's layout."""
    signals = folder / _EUROC_SIGNALS[0]
    signals.parent.mkdir(parents=True, exist_ok=True)
    with signals.open("wb") as file:
        write_signals(file, recording)
    if truth := recording.truth:
        path = signals.parents[1] / _EUROC_TRUTH
        path.parent.mkdir(exist_ok=True)
        wxyz = np.roll(truth.rotations, 1, axis=1)
        values = np.hstack([truth.positions, wxyz, truth.velocities])
        with path.open("wb") as file:
            _write(file, _TRUTH_COLUMNS, recording.time_ns, values)


def _write(file: BinaryIO, columns: Sequence[str], time_ns: NDArray[np.int64], values: Array) -> None:
    file.write((",".join(columns) + "\n").encode())
    for time, row in zip(time_ns.tolist(), values.tolist(), strict=True):
        file.write(",".join([str(time), *(f"{value:.12g}" for value in row)]).encode() + b"\n")


def _euroc(signals: Path, ground_truth: Path | None, name: str) -> Recording:
    allowed = (len(_EUROC_COLUMNS), len(_EUROC_COLUMNS) + len(_VARIANCE_COLUMNS))
    time_ns, values = _read_csv(signals, allowed)
    gyro, acc = values[:, :3], values[:, 3:6]
    if ground_truth is None:
        return Recording(name, time_ns, acc, gyro)
    truth_ns, truth = _read_csv(ground_truth, (len(_TRUTH_COLUMNS), len(_TRUTH_COLUMNS) + 6))
    _check_truth(ground_truth, truth_ns, truth)
    covered = (time_ns >= truth_ns[0]) & (time_ns <= truth_ns[-1])
    if not covered.any():
        raise InvalidRequest(f"{ground_truth}: must cover the time of {signals}, got no frame in common")
    time_ns, acc, gyro = time_ns[covered], acc[covered], gyro[covered]
    motion = Motion(
        positions=_interpolate(time_ns, truth_ns, truth[:, :3]),
        rotations=_turn(time_ns, truth_ns, np.roll(truth[:, 3:7], -1, axis=1)),
        velocities=_interpolate(time_ns, truth_ns, truth[:, 7:10]),
    )
    return Recording(name, time_ns, acc, gyro, motion)


def _read_csv(path: Path, allowed: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
    """Return the times and the other columns of a file whose first line is a comment.

    Raises:
        InvalidRequest: it cannot be read, or has another number of columns.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row and not row[0].startswith("#")]
        # Nanoseconds since 1970 have more digits than a float64.
        times = np.array([int(row[0]) for row in rows], np.int64)
        values = np.array([[float(value) for value in row[1:]] for row in rows])
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidRequest(f"{path}: must be a CSV of numbers, got {error}") from None
    if not rows or values.shape[1] + 1 not in allowed:
        got = f"{values.shape[1] + 1} columns" if rows else "no rows"
        raise InvalidRequest(f"{path}: must have {' or '.join(map(str, allowed))} columns, got {got}")
    return times, values


def _check_truth(path: Path, time_ns: NDArray[np.int64], truth: Array) -> None:
    """Refuse states between which nothing can be interpolated.

    Raises:
        InvalidRequest: naming every rule that a row breaks.
    """
    problems = []
    if len(back := np.flatnonzero(np.diff(time_ns) <= 0)):
        problems.append(f"time must rise from row to row, got a step back after row {back[0] + 1}")
    if len(zero := np.flatnonzero(~truth[:, 3:7].any(axis=1))):
        problems.append(f"rotation must be a unit quaternion, got zeros in row {zero[0] + 1}")
    raise_all(str(path), problems)


def _interpolate(time_ns: NDArray[np.int64], known_ns: NDArray[np.int64], values: Array) -> Array:
    at, known = _since_first(time_ns, known_ns)
    return np.stack([np.interp(at, known, column) for column in values.T], axis=1)


def _turn(time_ns: NDArray[np.int64], known_ns: NDArray[np.int64], rotations: Array) -> Array:
    """Interpolate rotations along the shortest turn, at constant speed."""
    known = Rotation.from_quat(rotations)
    if len(rotations) == 1:  # Slerp wants two, and every time asked for is this one's.
        return np.asarray(known[np.zeros(len(time_ns), int)].as_quat())
    at, since = _since_first(time_ns, known_ns)
    return np.asarray(Slerp(since, known)(at).as_quat())


def _since_first(time_ns: NDArray[np.int64], known_ns: NDArray[np.int64]) -> tuple[Array, Array]:
    # Relative, since float64 holds no nanoseconds of today.
    return (time_ns - known_ns[0]).astype(float), (known_ns - known_ns[0]).astype(float)


def _kitti(oxts: Path, name: str) -> Recording:
    """Read a drive: each line is latitude, longitude, altitude, roll, pitch, yaw, velocities, signals, ..."""
    files = sorted((oxts / "data").glob("*.txt"))
    try:
        stamps = (oxts / "timestamps.txt").read_text(encoding="utf-8").split("\n")
        times = np.array([np.datetime64(line.strip().replace(" ", "T"), "ns") for line in stamps if line])
        values = np.array([np.loadtxt(file, ndmin=1)[:20] for file in files])
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{oxts}: must have timestamps.txt and data/*.txt, got {error}") from None
    if values.ndim != 2 or values.shape[1] != 20:
        raise InvalidRequest(f"{oxts}: data/*.txt must have 20 numbers or more each, got {values.shape}")
    rotations = Rotation.from_euler("xyz", values[:, 3:6])
    motion = Motion(
        positions=_mercator(values[:, :3]),
        rotations=rotations.as_quat(),
        # Forward, left and up are the body's axes.
        velocities=rotations.apply(values[:, 8:11]),
    )
    return Recording(name, times.astype(np.int64), values[:, 11:14], values[:, 17:20], motion)


def _mercator(places: Array) -> Array:
    """Return metres from the first of places [frames, 3] in latitude and longitude, degrees, and altitude, m.

    A Mercator projection at the scale of the first latitude, as in KITTI's development kit.
    """
    latitude, longitude, altitude = np.radians(places[:, 0]), np.radians(places[:, 1]), places[:, 2]
    scale = _EARTH_RADIUS_M * np.cos(latitude[0])
    east, north = scale * longitude, scale * np.log(np.tan(np.pi / 4 + latitude / 2))
    metres: Any = np.stack([east, north, altitude], axis=1)
    return np.asarray(metres - metres[0])
