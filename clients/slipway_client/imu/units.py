"""Units of a recording's file, and the units that a user states for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

TimeUnit = Literal["ns", "us", "ms", "s"]
RateUnit = Literal["rad/s", "deg/s"]
AccelerationUnit = Literal["m/s^2", "g"]

TIME_NS: dict[str, int] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
RATES: dict[str, float] = {"rad/s": 1.0, "deg/s": math.pi / 180}
ACCELERATIONS: dict[str, float] = {"m/s^2": 1.0, "g": 9.80665}


@dataclass(frozen=True)
class Units:
    """Units that a user states.

    Attributes:
        time: Unit of times; None leaves it to the file's header, or to nanoseconds without one.
        rate: Unit of rates of rotation; None leaves it to the header, or to rad/s.
        acceleration: Unit of accelerations; None leaves it to the header, or to m/s².
    """

    time: TimeUnit | None = None
    rate: RateUnit | None = None
    acceleration: AccelerationUnit | None = None
