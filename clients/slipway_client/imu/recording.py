"""Recording of an inertial sensor, with the ground truth of its motion if it is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import raise_all

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Motion:
    """Motion of a body, frame by frame.

    Attributes:
        positions: Positions in the world, whose z axis points up, [frames, 3], m.
        rotations: Unit quaternions x, y, z, w from the body to the world, [frames, 4].
        velocities: Velocities in the world, [frames, 3], m/s.
    """

    positions: Array
    rotations: Array
    velocities: Array

    def between(self, start: int, stop: int) -> Motion:
        """Return the frames from `start` up to, but not including, `stop`."""
        return Motion(self.positions[start:stop], self.rotations[start:stop], self.velocities[start:stop])


@dataclass(frozen=True)
class Recording:
    """Signals of a sensor, frame by frame.

    Attributes:
        name: Name of the file or folder, for messages.
        time_ns: Times in nanoseconds, [frames], rising.
        acc: Acceleration in the body's frame, gravity included, [frames, 3], m/s².
        gyro: Rate of rotation in the body's frame, [frames, 3], rad/s.
        truth: Motion of the body at the frames; None if it is not known.
    """

    name: str
    time_ns: NDArray[np.int64]
    acc: Array
    gyro: Array
    truth: Motion | None = None

    def __post_init__(self) -> None:
        problems = []
        arrays: dict[str, NDArray[Any]] = {"time_ns": self.time_ns, "acc": self.acc, "gyro": self.gyro}
        if self.truth:
            arrays |= {f"truth {name}": array for name, array in vars(self.truth).items()}
        if len({len(array) for array in arrays.values()}) > 1:
            lengths = ", ".join(f"{len(array)} of {name}" for name, array in arrays.items())
            problems.append(f"all signals must have the same number of frames, got {lengths}")
        if not len(self.time_ns):
            problems.append("a recording must have 1 frame or more, got none")
        problems += [
            f"{name} must be finite, got {array[tuple(bad[0])]} in frame {bad[0][0]}"
            for name, array in arrays.items()
            if len(bad := np.argwhere(~np.isfinite(array)))
        ]
        if len(back := np.flatnonzero(np.diff(self.time_ns) <= 0)):
            problems.append(f"time must increase from frame to frame, got a decrease after frame {back[0]}")
        raise_all(self.name, problems)

    def __len__(self) -> int:
        return len(self.time_ns)

    @property
    def time_s(self) -> Array:
        """Return the time since the first frame, [frames], in seconds."""
        return np.asarray((self.time_ns - self.time_ns[0]) / 1e9)

    def with_signals(self, acc: Array, gyro: Array) -> Recording:
        """Return the recording with other signals, such as corrected ones."""
        return replace(self, acc=acc, gyro=gyro)

    def rotation_at(self, frame: int) -> Array:
        """Return the rotation from the body to the world, [4], as x, y, z, w.

        Without ground truth, it is the rotation that turns the frame's acceleration upwards, as if the sensor
        were at rest; the heading is then 0.

        Raises:
            InvalidRequest: There is no ground truth, and an acceleration below 1 m/s² does not show which way
                is up.
        """
        if self.truth:
            rotation: Array = self.truth.rotations[frame]
            return rotation
        acc = self.acc[frame]
        size = float(np.linalg.norm(acc))
        if size < 1:
            raise_all(
                self.name,
                [
                    f"acc must show gravity where a window begins, got {size:.2g} m/s² in frame {frame};"
                    " try --ground-truth"
                ],
            )
        x, y, z = acc / size
        if z < -1 + 1e-12:  # upside down: half a turn about any horizontal axis
            return np.array([1.0, 0.0, 0.0, 0.0])
        # The shortest turn from (x, y, z) to (0, 0, 1): its axis is their cross product.
        quaternion = np.array([y, -x, 0.0, 1 + z])
        return np.asarray(quaternion / np.linalg.norm(quaternion))
