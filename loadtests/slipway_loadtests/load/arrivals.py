"""Arrival times of an open load, independent of the server's answers and the same for the same seed.

The gap between two arrivals is drawn with a mean of one and scaled by the rate of the current stage, so the
rate may change in the middle of a gap.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slipway_loadtests.load.plan import Plan


def moments_s(plan: Plan, share: float, random: np.random.Generator) -> Iterator[float]:
    """Yield the time of each arrival, in seconds from the beginning, until the last stage ends.

    Args:
        plan: Load test with open arrivals.
        share: Share of the plan's rate that this source generates, above 0 to 1. Independent sources of
            poisson arrivals are poisson together; constant ones begin at random times, so that they do not
            coincide.
        random: Random generator for the gaps.
    """
    left = random.uniform() if plan.arrivals == "constant" else _gap(plan, random)
    begun_s = 0.0
    for stage in plan.stages:
        per_s, at = stage.level * share, 0.0
        capacity = per_s * stage.seconds  # the number of gaps of mean one that fit into the stage
        while at + left <= capacity:
            at += left
            left = _gap(plan, random)
            yield begun_s + at / per_s
        left -= capacity - at
        begun_s += stage.seconds


def _gap(plan: Plan, random: np.random.Generator) -> float:
    match plan.arrivals:
        case "poisson":
            return float(random.exponential())
        case "gamma":
            return float(random.gamma(1 / plan.burst, plan.burst))
        case _:
            return 1.0
