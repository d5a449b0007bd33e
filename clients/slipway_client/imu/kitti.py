"""Reader of KITTI's raw data: signals and ground truth from the `oxts` of a drive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from slipway_client.imu.recording import Array, Motion, Recording
from slipway_serving.protocol.errors import InvalidRequest

_EARTH_RADIUS_M = 6378137.0
_PACKET_NUMBERS = 20


def read_kitti(oxts: Path, name: str) -> Recording:
    """Read a drive's signals and ground truth.

    Each file of `oxts/data` is one line: latitude, longitude, altitude, roll, pitch, yaw, velocities, signals
    and other values.

    Args:
        oxts: Folder with `timestamps.txt` and `data`.
        name: Display name of the recording.

    Raises:
        InvalidRequest: A file is missing or cannot be read, or has too few numbers.
    """
    files = sorted((oxts / "data").glob("*.txt"))
    try:
        stamps = (oxts / "timestamps.txt").read_text(encoding="utf-8-sig").split("\n")
        times = np.array(
            [np.datetime64(line.strip().replace(" ", "T"), "ns") for line in stamps if line.strip()]
        )
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{oxts}: must have timestamps.txt and data/*.txt, got {error}") from None
    if not files:
        raise InvalidRequest(f"{oxts}: must have data/*.txt, got none")
    values = np.array([_packet(file) for file in files])
    rotations = Rotation.from_euler("xyz", values[:, 3:6])
    motion = Motion(
        positions=_mercator(values[:, :3]),
        rotations=rotations.as_quat(),
        # The velocities are along the body's axes forward, left and up.
        velocities=rotations.apply(values[:, 8:11]),
    )
    return Recording(name, times.astype(np.int64), values[:, 11:14], values[:, 17:20], motion)


def _packet(file: Path) -> Array:
    """Return the first 20 numbers of the file of one point in time."""
    try:
        numbers = np.loadtxt(file, ndmin=1)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{file}: must be a line of numbers, got {error}") from None
    if numbers.ndim != 1 or len(numbers) < _PACKET_NUMBERS:
        raise InvalidRequest(
            f"{file}: must be a line of {_PACKET_NUMBERS} numbers or more, got shape {list(numbers.shape)}"
        )
    return np.asarray(numbers[:_PACKET_NUMBERS])


def _mercator(places: Array) -> Array:
    """Convert [frames, 3], latitude and longitude in degrees and altitude in m, to metres from the first.

    The projection is Mercator at the scale of the first latitude, as in KITTI's development kit.
    """
    latitude, longitude, altitude = np.radians(places[:, 0]), np.radians(places[:, 1]), places[:, 2]
    scale = _EARTH_RADIUS_M * np.cos(latitude[0])
    east, north = scale * longitude, scale * np.log(np.tan(np.pi / 4 + latitude / 2))
    metres: Any = np.stack([east, north, altitude], axis=1)
    return np.asarray(metres - metres[0])
