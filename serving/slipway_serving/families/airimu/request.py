"""Requests and responses of the models airimu and airimu_stream.

One request carries whole recordings; the chunks of a single recording are the turns of a session. The
exported network limits the number of frames in a request; the served models check it against their facts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.events import Event
from slipway_serving.protocol.fields import BATCH, Array, Rule
from slipway_serving.protocol.requests import Request

Signal = NDArray[np.float32]

# A quaternion that was stored with four decimals may have a norm that is off by this much.
_UNIT_TOLERANCE = 1e-3
_FRAMES = (BATCH, "frames", 3)
_FIX = "windows of the recording, or airimu_stream"
_ROTATION_HELP = "rotation from the sensor to the world, z up, at the first frame"


def _norms(rotations: Signal) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(rotations.astype(np.float64), axis=1))


def _furthest(rotations: Signal) -> str:
    norms = _norms(rotations)
    return f"a norm of {norms[np.abs(norms - 1).argmax()]:.4g}"


_UNIT = Rule(
    "unit quaternions x, y, z, w",
    lambda rotations: bool((np.abs(_norms(rotations) - 1) <= _UNIT_TOLERANCE).all()),
    lambda _: "dividing each by its norm",
    _ROTATION_HELP,
    format_value=_furthest,
)
# This is more than inertial sensors measure (200 g). CodeNetKITTI's variances are exponentials of its input;
# with random weights they are finite at 3,000 and infinite at 10,000.
_LARGEST = 2000.0
_RANGE: dict[str, Any] = {"low": -_LARGEST, "high": _LARGEST}
_ACC = Array("float32", _FRAMES, "acceleration, m/s², gravity included", fix=_FIX, ragged=True, **_RANGE)
_GYRO = Array("float32", _FRAMES, "rate of rotation, rad/s", fix=_FIX, ragged=True, **_RANGE)
_ROTATION = Array("float32", (BATCH, 4), _ROTATION_HELP, extra_rule=_UNIT, default="the identity")
# The last turn may have no frames; the served model refuses any other turn without frames.
_CHUNK_SIZES = {BATCH: (1, 1), "frames": (0, None)}
_CHUNK_ACC = replace(_ACC, sizes=_CHUNK_SIZES, fix="smaller chunks")
_CHUNK_GYRO = replace(_GYRO, sizes=_CHUNK_SIZES, fix="smaller chunks")
_FIRST_ROTATION = replace(_ROTATION, sizes={BATCH: (1, 1)})
_CORRECTED_ACC = Array("float32", _FRAMES, "acc plus correction_acc, m/s²")
_CORRECTED_GYRO = Array("float32", _FRAMES, "gyro plus correction_gyro, rad/s")
_CORRECTION_ACC = Array("float32", _FRAMES, "correction of the acceleration, m/s²")
_CORRECTION_GYRO = Array("float32", _FRAMES, "correction of the rate of rotation, rad/s")
_ACC_COV = Array(
    "float32", _FRAMES, "variance of each axis of the acceleration, m²/s⁴; absent if the network has none"
)
_GYRO_COV = Array(
    "float32",
    _FRAMES,
    "variance of each axis of the rate of rotation, rad²/s²; absent if the network has none",
)


@dataclass(frozen=True)
class Corrections(Event):
    """Corrected frames; all arrays are [batch, frames, 3], float32.

    Attributes:
        corrected_acc: Acceleration plus its correction, m/s².
        corrected_gyro: Rate of rotation plus its correction, rad/s.
        correction_acc: Correction of the acceleration, m/s².
        correction_gyro: Correction of the rate of rotation, rad/s.
        acc_cov: Variances of the acceleration, m²/s⁴; None from a network without covariances.
        gyro_cov: Variances of the rate of rotation, rad²/s²; None from a network without covariances.
    """

    corrected_acc: Annotated[Signal, _CORRECTED_ACC]
    corrected_gyro: Annotated[Signal, _CORRECTED_GYRO]
    correction_acc: Annotated[Signal, _CORRECTION_ACC]
    correction_gyro: Annotated[Signal, _CORRECTION_GYRO]
    acc_cov: Annotated[Signal | None, _ACC_COV] = None
    gyro_cov: Annotated[Signal | None, _GYRO_COV] = None


@dataclass(frozen=True)
class CorrectionRequest(Request):
    """Correct whole recordings of one length.

    Attributes:
        acc: Acceleration, [batch, frames, 3], float32, m/s², gravity included.
        gyro: Rate of rotation, [batch, frames, 3], float32, rad/s.
        initial_rotation: Rotations from the sensor to the world at the first frame, [batch, 4], float32, unit
            quaternions x, y, z, w; None is the identity.

    Raises:
        InvalidRequest: A field breaks its rule; the message names every such field.
    """

    model: ClassVar[str] = "airimu"
    events: ClassVar[tuple[type[Event], ...]] = (Corrections,)
    streams: ClassVar[bool] = False

    acc: Annotated[Signal, _ACC]
    gyro: Annotated[Signal, _GYRO]
    initial_rotation: Annotated[Signal | None, _ROTATION] = None


@dataclass(frozen=True)
class CorrectionTurn(Request):
    """Turn with the next frames of a recording, any number of them; the last turn may have none.

    Attributes:
        acc: Acceleration, [1, frames, 3], float32, m/s², gravity included.
        gyro: Rate of rotation, [1, frames, 3], float32, rad/s.

    Raises:
        InvalidRequest: A field breaks its rule; the message names every such field.
    """

    model: ClassVar[str] = "airimu_stream"

    acc: Annotated[Signal, _CHUNK_ACC]
    gyro: Annotated[Signal, _CHUNK_GYRO]


@dataclass(frozen=True)
class CorrectionStreamRequest(Request):
    """Open a session for a recording, whose turns carry chunks of it.

    Attributes:
        initial_rotation: Rotation at the first frame, [1, 4], float32, as in :class:`CorrectionRequest`.

    Raises:
        InvalidRequest: The rotation breaks its rule.
    """

    model: ClassVar[str] = "airimu_stream"
    events: ClassVar[tuple[type[Event], ...]] = (Corrections,)
    streams: ClassVar[bool] = False
    turn: ClassVar[type[Request] | None] = CorrectionTurn

    initial_rotation: Annotated[Signal | None, _FIRST_ROTATION] = None


def frames_of(recordings: CorrectionRequest | CorrectionTurn) -> Signal:
    """Return the signals of recordings in one array, [batch, frames, 6]: acceleration, rate of rotation."""
    return np.concatenate([recordings.acc, recordings.gyro], axis=2)
