"""The arithmetic of the benchmarks: summaries of rounds, ratios of rounds, a line through points.

Times are taken in rounds, every subject once per round; a ratio is made within its round, so that whatever
slows the machine down for a while slows both of its sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Smallest, middle and largest of some values, and the values in their order."""

    min: float
    median: float
    max: float
    values: tuple[float, ...]


def summarize(values: Sequence[float]) -> Summary:
    """Summarize at least one value."""
    return Summary(min(values), statistics.median(values), max(values), tuple(values))


def ratios(baseline: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return baseline ÷ other, round by round: above 1 the other is faster.

    Raises:
        ValueError: they do not have the same number of rounds.
    """
    return [first / second for first, second in zip(baseline, other, strict=True)]


@dataclass(frozen=True)
class Line:
    """A least-squares line ``y = slope * x + intercept``.

    Attributes:
        slope: growth of y per unit of x.
        intercept: y at x = 0.
        r2: share of the variance of y that the line explains, at most 1; 1 where y does not vary.
    """

    slope: float
    intercept: float
    r2: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line through at least two points with different x.

    Raises:
        ValueError: there are fewer.
    """
    if len(set(x)) < 2:
        raise ValueError(f"a line needs two points with different x, got x = {list(x)}")
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    dx, dy = xs - xs.mean(), ys - ys.mean()
    slope = float(dx @ dy / (dx @ dx))
    intercept = float(ys.mean() - slope * xs.mean())
    spread = float(dy @ dy)
    missed = ys - (slope * xs + intercept)
    return Line(slope, intercept, 1.0 - float(missed @ missed) / spread if spread else 1.0)
