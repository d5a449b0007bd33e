"""Arrivals: users' requests in the order of time, the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipway_serving.protocol.errors import raise_all


@dataclass(frozen=True)
class Arrival:
    """One request of a user.

    Attributes:
        at_s: Time of sending, in seconds from the start.
        service_s: Service time alone on a replica, in seconds.
        user: Number of the sender; a sticky fleet routes all requests of a user to the same replica.
    """

    at_s: float
    service_s: float
    user: int = 0


def poisson(per_s: float, count: int, service_s: Sequence[float], seed: int = 0) -> list[Arrival]:
    """Return requests of many independent users, as a Poisson process.

    Args:
        per_s: Mean number of requests per second, above 0.
        count: Number of requests.
        service_s: Measured service times in seconds; each request takes one at random.
        seed: Seed of times and services.
    """
    _check(per_s=per_s, count=count, services=len(service_s))
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / per_s, count))
    services = random.choice(np.asarray(service_s, np.float64), count)
    return [
        Arrival(*pair, user) for user, pair in enumerate(zip(times.tolist(), services.tolist(), strict=True))
    ]


def waves(
    high_per_s: float, low_per_s: float, half_s: float, count: int, service_s: Sequence[float], seed: int = 0
) -> list[Arrival]:
    """Return `count` waves, each `half_s` of many requests then `half_s` of few; else as :func:`poisson`."""
    _check(high_per_s=high_per_s, low_per_s=low_per_s, half_s=half_s, count=count, services=len(service_s))
    random = np.random.default_rng(seed)
    times: list[float] = []
    for half in range(2 * count):
        expected = (low_per_s if half % 2 else high_per_s) * half_s
        times += np.sort(half * half_s + random.uniform(0, half_s, random.poisson(expected))).tolist()
    services = random.choice(np.asarray(service_s, np.float64), len(times)).tolist()
    return [Arrival(*pair, user) for user, pair in enumerate(zip(times, services, strict=True))]


def streams(
    users: int, period_s: float, rounds: int, service_s: Sequence[float], seed: int = 0
) -> list[Arrival]:
    """Return requests of users who each send one in every period, at a random phase of their own.

    Args:
        users: Number of open streams.
        period_s: Time between two requests of a user, in seconds.
        rounds: Number of requests of each user.
        service_s: Service times in seconds, as for :func:`poisson`.
        seed: Seed of the phases and services.
    """
    _check(users=users, period_s=period_s, rounds=rounds, services=len(service_s))
    random = np.random.default_rng(seed)
    first = np.sort(random.uniform(0, period_s, users))
    times = (first + period_s * np.arange(rounds)[:, None]).ravel().tolist()
    services = random.choice(np.asarray(service_s, np.float64), len(times)).tolist()
    return [Arrival(*pair, number % users) for number, pair in enumerate(zip(times, services, strict=True))]


def _check(**positive: float) -> None:
    """Refuse values that are not above 0."""
    raise_all(
        "capacity: arrivals",
        [f"{name} must be above 0, got {value}" for name, value in positive.items() if not value > 0],
    )
