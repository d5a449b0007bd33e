"""Capacity planning: turns users' behaviour into arrivals and finds the smallest fleet that serves them.

A :class:`Demand` is data: the cost of one request on a replica, the behaviour of one user, and the promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipway_loadtests.capacity.arrivals import Arrival, poisson, streams
from slipway_loadtests.capacity.fleet import Fleet, Routing
from slipway_loadtests.capacity.simulation import Floats, simulate
from slipway_serving.protocol.errors import Unrecoverable, raise_all

# Length of a simulation: long enough to notice a growing queue.
_REQUESTS = 4000
_SERVICES_OF_LOAD = 200
_PERIODS, _FIRST_PERIODS = 24, 4
_MOST_REPLICAS = 10_000


@dataclass(frozen=True)
class Service:
    """Service times and rates of one replica for a kind of request: the input of the capacity model.

    Attributes:
        alone_s: Latencies of requests that ran alone, in seconds.
        rates: Rates of concurrent requests, see :class:`slipway_loadtests.capacity.fleet.Fleet`.
    """

    alone_s: tuple[float, ...]
    rates: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """Mean latency alone, in seconds."""
        return float(np.mean(self.alone_s))

    @property
    def per_s(self) -> float:
        """Most requests per second of a replica."""
        return Fleet(rates=self.rates).throughput / self.mean_s


@dataclass(frozen=True)
class Demand:
    """Demand of one family's users on a fleet.

    Attributes:
        name: Name of the family.
        service_s: Times that a request, or a whole session, takes alone on a replica, in seconds.
        each_s: Mean time between two requests of one user, in seconds.
        p95_s: Promised 95th percentile of the delay beyond the service time, in seconds.
        rates: Rates of concurrent requests, see :class:`slipway_loadtests.capacity.fleet.Fleet`.
        streamed: True if a user is an open stream: a request exactly every `each_s`, always to one replica.
        replica: Hardware of one replica, in words.
        source: Source of the service time.
    """

    name: str
    service_s: tuple[float, ...]
    each_s: float
    p95_s: float
    rates: tuple[float, ...] = (1.0,)
    streamed: bool = False
    replica: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        """Check every number.

        Raises:
            InvalidRequest: At least one field breaks its rule; the message names each.
        """
        rules = {
            f"service_s must be one or more times above 0, got {self.service_s}": bool(self.service_s)
            and all(0 < value < math.inf for value in self.service_s),
            f"each_s must be above 0, got {self.each_s}": 0 < self.each_s < math.inf,
            f"p95_s must be above 0, got {self.p95_s}": 0 < self.p95_s < math.inf,
        }
        raise_all(f"capacity: {self.name}", [text for text, held in rules.items() if not held])

    @property
    def service_mean_s(self) -> float:
        """Mean service time, in seconds."""
        return float(np.mean(self.service_s))

    def load(self, users: int) -> float:
        """Return how many replicas would always be busy if work could be split and moved freely."""
        return users * self.service_mean_s / self.each_s / Fleet(rates=self.rates).throughput

    def arrivals(self, users: int, seed: int) -> list[Arrival]:
        """Return the arrivals of a number of users."""
        if self.streamed:
            return streams(users, self.each_s, _PERIODS, self.service_s, seed)
        count = max(_REQUESTS, math.ceil(_SERVICES_OF_LOAD * self.load(users)))
        return poisson(users / self.each_s, count, self.service_s, seed)

    def settled_s(self, arrivals: Sequence[Arrival]) -> float:
        """Return the time in seconds after which requests count, because the fleet was empty at the start."""
        return _FIRST_PERIODS * self.each_s if self.streamed else 0.1 * arrivals[-1].at_s


@dataclass(frozen=True)
class Answer:
    """Smallest fleet that keeps a promise.

    Attributes:
        users: Number of users.
        routing: Routing rule of the fleet.
        replicas: Smallest number of replicas.
        load: Work in units of fully busy replicas.
        p95_s: Delay's 95th percentile with this number of replicas, in seconds.
    """

    users: int
    routing: Routing
    replicas: int
    load: float
    p95_s: float

    @property
    def utilization(self) -> float:
        """Share of the fleet that is busy."""
        return self.load / self.replicas


def replicas_for(demand: Demand, users: int, routing: Routing = "least", seed: int = 0) -> Answer:
    """Find the smallest fleet that keeps a demand's promise.

    Args:
        demand: Behaviour of one user, and the promise.
        users: Number of users, 1 or more.
        routing: Routing rule of the fleet.
        seed: Seed of arrivals and routing.

    Raises:
        InvalidRequest: There are no users.
        Unrecoverable: No number of replicas up to 10,000 keeps the promise.
    """
    if users < 1:
        raise_all("capacity", [f"users must be 1 or more, got {users}"])
    arrivals = demand.arrivals(users, seed)
    known: dict[int, float] = {}

    def p95_s(replicas: int) -> float:
        if replicas not in known:
            fleet = Fleet(replicas, demand.rates, routing, sticky=demand.streamed)
            delays = simulate(fleet, arrivals, seed).delays_s(demand.settled_s(arrivals))
            known[replicas] = float(np.percentile(delays, 95))
        return known[replicas]

    # With fewer replicas than the load, every queue grows without end, even if a short simulation hides it.
    enough = least = math.floor(demand.load(users)) + 1
    while p95_s(enough) > demand.p95_s:
        least = enough + 1
        enough += max(1, enough // 4)
        if enough > _MOST_REPLICAS:
            raise Unrecoverable(
                f"capacity: {demand.name}: p95_s must be in reach of {_MOST_REPLICAS:,} replicas, "
                f"got {demand.p95_s} at {users} users; try a longer one"
            )
    while least < enough:
        middle = (least + enough) // 2
        if p95_s(middle) <= demand.p95_s:
            enough = middle
        else:
            least = middle + 1
    return Answer(users, routing, enough, demand.load(users), p95_s(enough))


def rates_of(together: Sequence[int], per_s: Sequence[float]) -> tuple[float, ...]:
    """Return the rates that explain the measured throughput.

    Args:
        together: Numbers of concurrent requests, rising from 1.
        per_s: Answers per second with each of these numbers; throughput is interpolated linearly between
            them.
    """
    counts = np.arange(1, together[-1] + 1)
    throughput = np.interp(counts, together, np.asarray(per_s) / per_s[0])
    return tuple(np.minimum(throughput / counts, 1.0).tolist())


def stream_latencies_s(service: Service, count: int, each_s: float, seed: int = 0) -> Floats:
    """Return the latencies of one replica that serves open streams, in seconds.

    Args:
        service: Service of one request.
        count: Number of streams, each with a request exactly every `each_s` at its own phase.
        each_s: Time between two requests of a stream, in seconds.
        seed: Seed of the phases.
    """
    sent = streams(count, each_s, _PERIODS, service.alone_s, seed)
    return simulate(Fleet(rates=service.rates), sent, seed).latencies_s(_FIRST_PERIODS * each_s)


def streams_carried(service: Service, each_s: float, share: float, seed: int = 0) -> int:
    """Return the most streams of which one replica answers a share of the requests before the next is due.

    Args:
        service: Service of one request.
        each_s: Time between two requests of a stream, in seconds.
        share: Share of the requests, above 0 to 1; if not even one stream reaches it, the answer is 0.
        seed: Seed of the phases, as in :func:`stream_latencies_s`.
    """
    # With more streams than the load, every queue grows without end, even if a short simulation hides it.
    carried, most = 0, math.floor(service.per_s * each_s)
    while carried < most:
        middle = (carried + most + 1) // 2
        if np.mean(stream_latencies_s(service, middle, each_s, seed) <= each_s) >= share:
            carried = middle
        else:
            most = middle - 1
    return carried
