"""Figures of the requests to one model in a period: counts, rates, shares, and the spread of each measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slipway_loadtests.load.outcomes import ANSWERED

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Spread:
    """Count, mean, percentiles and maximum of a measure."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float


def spread_of(values: Sequence[float]) -> Spread:
    """Return the spread of one or more values."""
    p50, p95, p99 = np.percentile(values, PERCENTILES).tolist()
    return Spread(len(values), float(np.mean(values)), p50, p95, p99, float(np.max(values)))


@dataclass(frozen=True)
class Figures:
    """Figures of the requests to one model in a period.

    Attributes:
        model: Name of the model.
        seconds: Length of the period, in seconds.
        sent: Number of requests due in the period.
        ended: Number of these requests by their end.
        per_s: Answers per second that arrived in the period.
        goodput_per_s: Good answers per second that arrived in the period.
        good_share: Share of good answers among those that arrived; 0 if none arrived.
        rejected_share: Share of rejected requests among those due.
        failed_share: Share of due requests neither answered nor rejected, nor cancelled by the user.
        measures: Spread of each measure over the answers to the due requests.
    """

    model: str
    seconds: float
    sent: int
    ended: Mapping[str, int]
    per_s: float
    goodput_per_s: float
    good_share: float
    rejected_share: float
    failed_share: float
    measures: Mapping[str, Spread]

    @property
    def answered(self) -> int:
        """Number of answered requests."""
        return self.ended.get(ANSWERED, 0)
