"""Moments at which requests come whatever the server does, the same for the same seed.

Time between two arrivals is drawn with a mean of one and stretched by the rate of the stage that it falls
into, so that a rate may change in the middle of a gap.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from slipway_loadtests.load.plan import Plan


def moments_s(plan: Plan, share: float, random: np.random.Generator) -> Iterator[float]:
    """Yield when each request comes, seconds from the beginning, until the last stage ends.

    Args:
        plan: with open arrivals.
        share: of the plan's rate that comes from here, above 0 to 1. Independent sources of poisson arrivals
            are poisson together; constant ones begin at random, so that they do not come at once.
        random: of the gaps.
    """
    left = random.uniform() if plan.arrivals == "constant" else _gap(plan, random)
    begun_s = 0.0
    for stage in plan.stages:
        per_s, at = stage.level * share, 0.0
        capacity = per_s * stage.seconds  # the gaps of mean one that fit into the stage
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
