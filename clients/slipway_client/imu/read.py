"""Reader of inertial sensors' recordings, and writer of EuRoC's layout.

A recording is a CSV file in the layout of EuRoC MAV and TUM-VI or with a header that names its columns, or a
drive of KITTI's raw data. Signals are converted to ns, rad/s and m/s², and refused if they are implausible in
the assumed units.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from slipway_client.imu.columns import SIGNALS, TRUTH
from slipway_client.imu.kitti import read_kitti
from slipway_client.imu.plausibility import check_units, describe_gaps
from slipway_client.imu.recording import Array, Motion, Recording
from slipway_client.imu.table import read_table
from slipway_client.imu.units import ACCELERATIONS, RATES, Units
from slipway_client.progress import Say, silent
from slipway_serving.protocol.errors import InvalidRequest, raise_all

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
_TRUTHS = (_EUROC_TRUTH, "mocap0/data.csv")
_NORM_TOLERANCE, _LONGEST_TRUTH_GAP_S = 0.01, 1.0


def read_recording(
    path: Path, ground_truth: Path | None = None, units: Units | None = None, say: Say = silent
) -> Recording:
    """Read a recording.

    Args:
        path: CSV file of signals, a folder around EuRoC's or TUM-VI's `imu0/data.csv`, or a drive of KITTI's
            raw data, whose `oxts` holds both the signals and the ground truth.
        ground_truth: CSV file of the ground truth, such as EuRoC's `state_groundtruth_estimate0/data.csv` or
            TUM-VI's `mocap0/data.csv`; if `path` is a folder, the file beside `imu0` is the default. The
            recording is cut to the time that the ground truth covers.
        units: Units that the user states; None states none.
        say: Callback that receives a sentence about gaps and about frames that are left out.

    Raises:
        InvalidRequest: There is no such recording, a file of it cannot be read, or its values are implausible
            in the assumed units.
    """
    stated = units or Units()
    if (path / "oxts").is_dir():
        _check_kitti_options(path, ground_truth, stated)
        recording, time_unit = read_kitti(path / "oxts", path.name), None
        recording = recording.with_signals(
            recording.acc * ACCELERATIONS[stated.acceleration or "m/s^2"],
            recording.gyro * RATES[stated.rate or "rad/s"],
        )
    else:
        signals, ground_truth = _files(path, ground_truth)
        recording, time_unit = _read_signals(signals, path.name, stated)
        if ground_truth is not None:
            recording = _add_truth(recording, signals, ground_truth, stated, say)
    check_units(recording, stated, time_unit)
    if found := describe_gaps(recording):
        say(found)
    return recording


def write_signals(file: BinaryIO, recording: Recording, variances: Sequence[Array] = ()) -> None:
    """Write signals in EuRoC's layout.

    Args:
        file: File, open for writing.
        recording: Recording with the signals.
        variances: Variances of the rate of rotation and of the acceleration, [frames, 3] each, written as six
            more columns.
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


def _files(path: Path, ground_truth: Path | None) -> tuple[Path, Path | None]:
    """Return the file of signals and that of the ground truth."""
    if not path.is_dir():
        return path, ground_truth
    found = [path / name for name in _EUROC_SIGNALS if (path / name).is_file()]
    if not found:
        raise InvalidRequest(
            f"{path}: must be a CSV file or a folder with {' or '.join(_EUROC_SIGNALS)} or"
            " KITTI's oxts, got a folder without them"
        )
    beside = (found[0].parents[1] / name for name in _TRUTHS)
    return found[0], ground_truth or next((truth for truth in beside if truth.is_file()), None)


def _check_kitti_options(path: Path, ground_truth: Path | None, stated: Units) -> None:
    problems = []
    if ground_truth is not None:
        problems.append(f"--ground-truth must be left out for KITTI, got {ground_truth}")
    if stated.time is not None:
        problems.append(f"--time-unit must be left out for KITTI, whose times are dates, got {stated.time}")
    raise_all(str(path), problems)


def _read_signals(path: Path, name: str, stated: Units) -> tuple[Recording, str]:
    """Return the signals of a file, and the unit of its times."""
    table = read_table(path, SIGNALS)
    rate, rate_problem = table.columns.unit("gyro", stated.rate)
    acceleration, acceleration_problem = table.columns.unit("acc", stated.acceleration)
    options = {"--rate-unit": rate_problem, "--acceleration-unit": acceleration_problem}
    raise_all(str(path), [f"{problem}; try {option}" for option, problem in options.items() if problem])
    time_ns, time_unit = table.times_ns(stated.time)
    acc = table.group("acc", ACCELERATIONS[acceleration])
    return Recording(name, time_ns, acc, table.group("gyro", RATES[rate])), time_unit


def _add_truth(recording: Recording, signals: Path, path: Path, stated: Units, say: Say) -> Recording:
    """Return a recording with its ground truth, cut to the time that the ground truth covers."""
    table = read_table(path, TRUTH)
    truth_ns, _ = table.times_ns(table.columns.units.get("time") or stated.time)
    positions, rotations = table.group("position"), table.group("rotation")
    _check_truth(path, truth_ns, rotations, table.lines)
    velocities = _velocities(truth_ns, positions)
    if "velocity" in table.columns.groups:
        velocities = table.group("velocity")
    covered = (recording.time_ns >= truth_ns[0]) & (recording.time_ns <= truth_ns[-1])
    if not covered.any():
        raise InvalidRequest(f"{path}: must cover the time of {signals}, got no frame in common")
    time_ns = recording.time_ns[covered]
    if left_out := len(recording) - len(time_ns):
        say(f"{path}: {left_out} of {len(recording)} frames lie outside the ground truth and are left out")
    motion = Motion(
        positions=_interpolate(time_ns, truth_ns, positions),
        rotations=_interpolate_rotations(time_ns, truth_ns, np.roll(rotations, -1, axis=1)),
        velocities=_interpolate(time_ns, truth_ns, velocities),
    )
    return Recording(recording.name, time_ns, recording.acc[covered], recording.gyro[covered], motion)


def _velocities(time_ns: NDArray[np.int64], positions: Array) -> Array:
    """Return central differences of positions, m/s, in place of velocities that a file lacks."""
    if len(positions) < 2:
        return np.zeros_like(positions)
    time_s = (time_ns - time_ns[0]) / 1e9
    return np.asarray(np.gradient(positions, time_s, axis=0))


def _check_truth(path: Path, time_ns: NDArray[np.int64], rotations: Array, lines: Sequence[int]) -> None:
    """Refuse states between which interpolation is impossible.

    Raises:
        InvalidRequest: A row breaks a rule; all broken rules are named.
    """
    problems = []
    norms = np.linalg.norm(rotations, axis=1)
    if len(bad := np.flatnonzero(~(np.abs(norms - 1) <= _NORM_TOLERANCE))):
        problems.append(
            f"rotation must be a unit quaternion, got a norm of {norms[bad[0]]:.3g} in row {lines[bad[0]]}"
        )
    steps_s = np.diff(time_ns) / 1e9
    if len(steps_s) and (longest := steps_s[at := int(steps_s.argmax())]) > _LONGEST_TRUTH_GAP_S:
        problems.append(
            f"ground truth must have no gap over {_LONGEST_TRUTH_GAP_S:g} s, got {longest:.3g} s after row"
            f" {lines[at]}; try a part without a gap, or the file of signals alone, without ground truth"
        )
    raise_all(str(path), problems)


def _interpolate(time_ns: NDArray[np.int64], known_ns: NDArray[np.int64], values: Array) -> Array:
    at, known = _relative_times(time_ns, known_ns)
    return np.stack([np.interp(at, known, column) for column in values.T], axis=1)


def _interpolate_rotations(
    time_ns: NDArray[np.int64], known_ns: NDArray[np.int64], rotations: Array
) -> Array:
    """Interpolate rotations along the shortest turn, at constant speed."""
    known = Rotation.from_quat(rotations)
    if len(rotations) == 1:  # Slerp needs two rotations, and all requested times are this one's.
        return np.asarray(known[np.zeros(len(time_ns), int)].as_quat())
    at, since = _relative_times(time_ns, known_ns)
    return np.asarray(Slerp(since, known)(at).as_quat())


def _relative_times(time_ns: NDArray[np.int64], known_ns: NDArray[np.int64]) -> tuple[Array, Array]:
    # Relative times, since float64 cannot represent nanoseconds since 1970 exactly.
    return (time_ns - known_ns[0]).astype(float), (known_ns - known_ns[0]).astype(float)
