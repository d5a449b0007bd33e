"""Effect of scaling on work that cannot move: long jobs under an autoscaler, sessions on sticky replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipway_benchmarks.capacity.demands import WAN_T2V, exponential
from slipway_loadtests.capacity.arrivals import poisson, waves
from slipway_loadtests.capacity.fleet import Autoscaler, Fleet, Metric, Routing
from slipway_loadtests.capacity.simulation import simulate

_HOUR_S = 3600.0
_KUBERNETES_GRACE_S = 30.0
# The first is Kubernetes' default, and the second is about as long as four long jobs.
_STABILIZATIONS_S = (300.0, 900.0)
_SESSIONS = 10_000


@dataclass(frozen=True)
class Traffic:
    """Long jobs in waves, and the limits of the autoscaler for them.

    Attributes:
        high_per_hour: Jobs per hour in the first half of a wave.
        low_per_hour: Jobs per hour in the second half.
        half_s: Length of half a wave, in seconds.
        waves: Number of consecutive waves.
        job_s: Service time of a job, in seconds.
        start_s: Cold start of a replica (image, weights, warm-up), in seconds.
        most: Largest number of replicas.
    """

    high_per_hour: float = 120.0
    low_per_hour: float = 12.0
    half_s: float = _HOUR_S
    waves: int = 12
    job_s: float = WAN_T2V.service_s[0]
    start_s: float = 180.0
    most: int = 12


@dataclass(frozen=True)
class Scaled:
    """Result of one way of scaling for a day's jobs.

    Attributes:
        name: Name of the way of scaling.
        jobs: Number of jobs, all answered in the end.
        lost: Number of times that a job was lost with its replica and began anew.
        wasted_hours: Replica-hours of lost work.
        held_hours: Replica-hours from each order to the end.
        p95_s: Delay's 95th percentile, in seconds.
        timeline: Pairs of (seconds, replicas held), at each change.
    """

    name: str
    jobs: int
    lost: int
    wasted_hours: float
    held_hours: float
    p95_s: float
    timeline: Sequence[tuple[float, int]]


def scale_long_jobs(traffic: Traffic, seed: int = 0) -> list[Scaled]:
    """Serve the same jobs with a fixed fleet and with autoscalers that drain ended replicas or not."""
    per_s = (traffic.high_per_hour / _HOUR_S, traffic.low_per_hour / _HOUR_S)
    arrivals = waves(*per_s, traffic.half_s, traffic.waves, (traffic.job_s,), seed)
    found = []
    for name, fleet in _ways(traffic).items():
        run = simulate(fleet, arrivals, seed)
        found.append(
            Scaled(
                name,
                jobs=len(run.requests),
                lost=run.lost,
                wasted_hours=run.wasted_s / _HOUR_S,
                held_hours=run.held_s / _HOUR_S,
                p95_s=float(np.percentile(run.delays_s(), 95)),
                timeline=run.timeline,
            )
        )
    return found


def _ways(traffic: Traffic) -> dict[str, Fleet]:
    """Return the fleets by name."""
    fleets = {f"always {traffic.most}": Fleet(traffic.most)}
    counted: dict[str, Metric] = {"waiting": "pending", "in flight": "in_flight"}
    for words, metric in counted.items():
        for stabilization_s in _STABILIZATIONS_S:
            for ending, grace_s in {"grace 30 s": _KUBERNETES_GRACE_S, "drained": math.inf}.items():
                fleets[f"{words}, {stabilization_s:.0f} s, {ending}"] = Fleet(
                    start_s=traffic.start_s,
                    grace_s=grace_s,
                    autoscaler=Autoscaler(most=traffic.most, metric=metric, stabilization_s=stabilization_s),
                )
    return fleets


@dataclass(frozen=True)
class SessionBound:
    """Highest utilization of a fleet of sessions before it refuses too many.

    Attributes:
        gpus: Number of GPUs in the fleet.
        sessions_each: Number of concurrent sessions on each GPU.
        routing: Routing rule: "least" finds a free place wherever there is one; "random" is like a hash of
            the session's id, which ignores free places.
        utilization: Share of the places that is taken when the refused share is reached.
    """

    gpus: int
    sessions_each: int
    routing: Routing
    utilization: float


def session_bound(
    gpus: int, sessions_each: int, routing: Routing, refused: float = 0.01, seed: int = 0
) -> SessionBound:
    """Find by bisection the load at which the given share of the sessions finds no place.

    Args:
        gpus: Number of GPUs in the fleet.
        sessions_each: Number of concurrent sessions on each GPU.
        routing: Routing rule that chooses a new session's GPU, where it then stays.
        refused: Share of the sessions that may be refused, above 0 and below 1.
        seed: Seed of arrivals and routing.
    """
    fleet = Fleet(gpus, (1.0,) * sessions_each, routing, sticky=True, queue_limit=0)
    places = gpus * sessions_each
    service_s = exponential(1.0, math.inf)
    low, high = 0.0, 1.0
    for _ in range(8):
        load = (low + high) / 2
        run = simulate(fleet, poisson(load * places, _SESSIONS, service_s, seed), seed)
        low, high = (load, high) if run.refused_share() <= refused else (low, load)
    return SessionBound(gpus, sessions_each, routing, low * (1 - refused))
