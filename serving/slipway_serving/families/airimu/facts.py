"""Facts of an exported AirIMU network for the served models: the places of its features in time.

The export writes the facts as `facts.json` beside the models; export and server both use this class. A
network computes one feature per `hop` frames. Feature `i` depends on the frames `hop * i - reach` to
`hop * i + reach` of the recording with its lead-in before it; frames outside count as absent. Frame `t` takes
the feature `(t + hop // 2) // hop + lead // hop`, or the last feature if there is no such one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import Unrecoverable

FACTS_FILE = "facts.json"


@dataclass(frozen=True)
class Facts:
    """Timing, outputs and limits of an exported network.

    Attributes:
        model: Name of the served graph that takes a whole recording.
        hop: Number of frames per feature.
        reach: Number of frames on either side of its own frame that a feature depends on.
        lead: Number of frames of the lead-in that the network takes before a recording; a multiple of `hop`.
        lead_gravity_m_s2: Upward acceleration that a sensor at rest measures in the lead-in; 0 for zeros.
        outputs: Names of the graphs' outputs without the states: corrections and, if the network has them,
            covariances.
        states: Sizes of the recurrent states of the step graph, by name.
        max_batch: Largest number of recordings in one run of a graph.
        max_frames: Largest number of frames of a recording in one request.
        max_steps: Largest number of features in one run of the step graph.
    """

    model: str
    hop: int
    reach: int
    lead: int
    lead_gravity_m_s2: float
    outputs: tuple[str, ...]
    states: Mapping[str, int]
    max_batch: int
    max_frames: int
    max_steps: int

    @classmethod
    def read(cls, folder: Path) -> Facts:
        """Read the file that the export placed in a model's version folder.

        Raises:
            Unrecoverable: The file is missing or has other entries.
        """
        path = folder / FACTS_FILE
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Unrecoverable(
                f"{path}: must be a facts file written by the export, got {error}; try exporting again"
            ) from None
        wanted = {field.name for field in fields(cls)}
        if not isinstance(entries, dict) or set(entries) != wanted:
            raise Unrecoverable(
                f"{path}: must have the entries {', '.join(sorted(wanted))}; try exporting again"
            )
        return cls(**{**entries, "outputs": tuple(entries["outputs"])})

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @property
    def overhang(self) -> int:
        """Number of frames beyond `hop * steps` that the step graph takes."""
        return 2 * self.reach + 1 - self.hop

    @property
    def held_back(self) -> int:
        """Largest number of frames that a stream holds back, i.e. the latency of its corrections."""
        return self.hop - 1 + self.reach - self.hop // 2

    def steps_of(self, frames: int) -> int:
        """Return the number of features of a complete recording."""
        return -(-(self.lead + frames) // self.hop)

    def steps_ready(self, frames: int) -> int:
        """Return the number of features that further frames cannot change."""
        return max(0, (self.lead + frames - 1 - self.reach) // self.hop + 1)

    def frames_ready(self, steps: int) -> int:
        """Return the number of frames whose corrections need only the first `steps` features."""
        return max(0, self.hop * (steps - self.lead // self.hop) - self.hop // 2)

    def step_of(self, frames: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
        """Return the feature that each frame takes.

        Args:
            frames: Indices of the frames within the recording.
            steps: Number of features of the recording so far.
        """
        return np.minimum((frames + self.hop // 2) // self.hop + self.lead // self.hop, steps - 1)

    def lead_in(self, rotations: NDArray[np.float32] | None, count: int) -> NDArray[np.float32]:
        """Return the lead-in of recordings: frames of sensors at rest.

        Args:
            rotations: Rotations at the first frames, [count, 4], unit quaternions x, y, z, w from the sensor
                to the world, whose z is up; None is the identity, i.e. level sensors.
            count: Number of recordings.

        Returns:
            Frames, [count, lead, 6]: acceleration, m/s², and rate of rotation, rad/s, which is 0.
        """
        up = np.zeros((count, 3), np.float32)
        if rotations is None:
            up[:, 2] = 1
        else:
            # This is the last row of the rotation matrix, i.e. the world's z axis in the sensor's frame.
            x, y, z, w = np.moveaxis(rotations.astype(np.float64), 1, 0)
            up[:] = np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], axis=1)
        frames = np.zeros((count, self.lead, 6), np.float32)
        frames[:, :, :3] = (self.lead_gravity_m_s2 * up)[:, None]
        return frames
