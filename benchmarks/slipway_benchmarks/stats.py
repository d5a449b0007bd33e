"""Statistics of the benchmarks: summaries of rounds, ratios of rounds, a line through points.

Times are measured in rounds, every subject once per round. A ratio is computed within its round, so that a
temporary slowdown of the machine affects both of its sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Smallest, median and largest of some values, and the values in their order."""

    min: float
    median: float
    max: float
    values: tuple[float, ...]


def summarize(values: Sequence[float]) -> Summary:
    """Summarize at least one value."""
    return Summary(min(values), statistics.median(values), max(values), tuple(values))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile of at least one value, between values where need be."""
    first, third = np.quantile(np.asarray(values, np.float64), (0.25, 0.75))
    return float(first), float(third)


def ratios(baseline: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return baseline ÷ other, round by round; above 1, the other is faster.

    Raises:
        ValueError: The two have different numbers of rounds.
    """
    return [first / second for first, second in zip(baseline, other, strict=True)]


@dataclass(frozen=True)
class Line:
    """Least-squares line ``y = slope * x + intercept``.

    Attributes:
        slope: Growth of y per unit of x.
        intercept: Value of y at x = 0.
        r2: Share of the variance of y that the line explains, at most 1; 1 if y does not vary.
    """

    slope: float
    intercept: float
    r2: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """Fit a line through at least two points with different x.

    Raises:
        ValueError: There are fewer than two different x.
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
