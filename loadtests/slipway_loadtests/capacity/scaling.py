"""What scaling does to work that cannot move: long jobs under an autoscaler, sessions on sticky replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipway_loadtests.capacity.arrivals import poisson, waves
from slipway_loadtests.capacity.fleet import Autoscaler, Fleet, Metric, Routing, simulate
from slipway_loadtests.capacity.plan import WAN_T2V, exponential

_HOUR_S = 3600.0
_KUBERNETES_GRACE_S = 30.0
# Kubernetes' own, and four long jobs.
_STABILIZATIONS_S = (300.0, 900.0)
_SESSIONS = 10_000


@dataclass(frozen=True)
class Traffic:
    """Long jobs in waves, and the replicas that the autoscaler may have for them.

    Attributes:
        high_per_hour: jobs per hour in the first half of a wave.
        low_per_hour: in the second.
        half_s: of a wave, seconds.
        waves: one after the other.
        job_s: service time of a job, seconds.
        start_s: cold start of a replica, seconds: image, weights, warm-up.
        most: replicas.
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
    """What one way of scaling did to a day's jobs.

    Attributes:
        name: of the way.
        jobs: that were sent, and in the end all answered.
        lost: times that a job was lost with its replica and began anew.
        wasted_hours: replica-hours of lost work.
        held_hours: replica-hours from each order to the end.
        p95_s: delay that 95 of 100 jobs stayed below, seconds.
        timeline: (seconds, replicas held), at each change.
    """

    name: str
    jobs: int
    lost: int
    wasted_hours: float
    held_hours: float
    p95_s: float
    timeline: Sequence[tuple[float, int]]


def scale_long_jobs(traffic: Traffic, seed: int = 0) -> list[Scaled]:
    """Serve the same jobs by a fixed fleet and by autoscalers that end replicas gently or not."""
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
    """Return the fleets by what they are called."""
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
    """How full a fleet of sessions can be before it turns too many away.

    Attributes:
        gpus: in the fleet.
        sessions_each: that one holds at a time.
        routing: "least" finds a free place wherever there is one; "random" is what a hash of the session's id
            does, which knows nothing of free places.
        utilization: share of the places that is taken when the refused share is reached.
    """

    gpus: int
    sessions_each: int
    routing: Routing
    utilization: float


def session_bound(
    gpus: int, sessions_each: int, routing: Routing, refused: float = 0.01, seed: int = 0
) -> SessionBound:
    """Find by bisection the load at which so large a share of the sessions finds no place.

    Args:
        gpus: in the fleet.
        sessions_each: that one holds at a time.
        routing: how a new session finds its GPU, where it then stays.
        refused: share of the sessions that may be turned away, above 0 and below 1.
        seed: of arrivals and routing.
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
