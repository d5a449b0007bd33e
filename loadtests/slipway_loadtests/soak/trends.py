"""Test whether a line is flat: its slope after a warm-up, and whether chance alone explains the slope.

The slope is the Theil-Sen estimate, the median of the slopes between all pairs of points, which a few
outliers do not move. The Mann-Kendall test, which counts the rising pairs, decides whether there is a trend
at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, theilslopes

FEWEST = 8
"""Smallest number of points for which a line is judged."""
WARM_UP = 0.1
"""Share of the time, at the beginning, that does not count, because allocators and caches fill."""
_HOUR_S = 3600.0
# One in 740 flat lines reaches this number of standard deviations by chance.
_SURE = 3.0


@dataclass(frozen=True)
class Trend:
    """Trend of a line.

    Attributes:
        percent_per_hour: Slope of the line, in percent of its median per hour.
        deviations: Excess of rising over falling pairs of points, in standard deviations.
        allowed_percent_per_hour: Largest slope that counts as flat.
    """

    percent_per_hour: float
    deviations: float
    allowed_percent_per_hour: float

    @property
    def flat(self) -> bool:
        """True if the line does not rise, rises by no more than is allowed, or no more than by chance."""
        return self.percent_per_hour <= self.allowed_percent_per_hour or self.deviations < _SURE


def trend_of(times_s: Sequence[float], values: Sequence[float], allowed: float) -> Trend | None:
    """Return the trend of a line after its warm-up, or None if it has too few points.

    Args:
        times_s: Times of the points, rising, in seconds.
        values: Values of the points, 0 or more.
        allowed: Largest slope that counts as flat, in percent per hour.
    """
    if len(times_s) < FEWEST:
        return None
    begin_s = times_s[0] + WARM_UP * (times_s[-1] - times_s[0])
    points = [(time_s, value) for time_s, value in zip(times_s, values, strict=True) if time_s >= begin_s]
    if len(points) < FEWEST:
        return None
    x, y = np.array(points, np.float64).T
    slope = float(theilslopes(y, x).slope)
    percent = 100 * slope * _HOUR_S / (float(np.median(y)) or 1.0)
    count = len(x)
    # There is no correction for ties, since one finds trends in more lines of few distinct values.
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return Trend(percent, _rising_excess(x, y) / spread, allowed)


def _rising_excess(x: NDArray[np.float64], y: NDArray[np.float64]) -> int:
    """Return how many more pairs of points rise than fall; `x` ascends."""
    distinct = len(np.unique(y))
    if distinct == 1:
        return 0  # Kendall's tau of equal values is not defined.
    # Stuart's tau-c is this excess divided by a number that follows from the number of distinct values.
    tau_c = float(kendalltau(x, y, variant="c").statistic)
    return round(tau_c * len(y) ** 2 * (distinct - 1) / (2 * distinct))
