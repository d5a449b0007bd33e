"""Whether a line that should be flat is: its slope after a warm-up, and whether chance alone gives one.

The slope is Theil's and Sen's, the median of the slopes between all pairs of points, which a few odd points
do not move; whether there is a trend at all is Mann's and Kendall's test, which counts the pairs that rise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 8
"""Points below which nothing is said of a line."""
WARM_UP = 0.1
"""Share of the time, at the beginning, that is no part of a line: allocators and caches fill."""
_HOUR_S = 3600.0
# Of lines that are flat, one in 740 comes to so many standard deviations by chance.
_SURE = 3.0


@dataclass(frozen=True)
class Trend:
    """How a line goes.

    Attributes:
        percent_per_hour: its slope, percent of its median.
        deviations: by how many standard deviations more pairs of points rise than fall.
        allowed_percent_per_hour: the most that passes for flat.
    """

    percent_per_hour: float
    deviations: float
    allowed_percent_per_hour: float

    @property
    def flat(self) -> bool:
        """Whether it does not rise, or not by more than is allowed, or no more than chance would have it."""
        return self.percent_per_hour <= self.allowed_percent_per_hour or self.deviations < _SURE


def trend_of(times_s: Sequence[float], values: Sequence[float], allowed: float) -> Trend | None:
    """Return how a line goes after its warm-up; None where it has too few points.

    Args:
        times_s: of the points, rising, seconds.
        values: of the points, 0 or more.
        allowed: percent per hour that pass for flat.
    """
    if len(times_s) < FEWEST:
        return None
    begin_s = times_s[0] + WARM_UP * (times_s[-1] - times_s[0])
    points = [(time_s, value) for time_s, value in zip(times_s, values, strict=True) if time_s >= begin_s]
    if len(points) < FEWEST:
        return None
    x, y = np.array(points, np.float64).T
    earlier, later = np.triu_indices(len(x), 1)
    rises = y[later] - y[earlier]
    slope = float(np.median(rises / (x[later] - x[earlier])))
    count = len(x)
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    percent = 100 * slope * _HOUR_S / (float(np.median(y)) or 1.0)
    return Trend(percent, float(np.sign(rises).sum()) / spread, allowed)
