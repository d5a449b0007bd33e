"""A discrete-event model of a Triton fleet: replicas with their queues, an autoscaler, cold starts, sessions.

Arrivals come from :mod:`slipway_loadtests.capacity.arrivals`. A router gives each to a replica, which works
on as many at a time as it has rates and lets the others wait in its own queue, as Triton does; there is no
queue of the fleet's. An autoscaler looks at the queues as Kubernetes' HorizontalPodAutoscaler does, orders
replicas that are ready after their cold start, and ends others, which finish what they have within their
grace period or lose it. :func:`simulate` returns a :class:`Run`, from which every figure is read.

A session that holds a place on a GPU is a request whose service lasts as long as the session.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal, get_args

import numpy as np
import simpy
from numpy.typing import NDArray

from slipway_serving.errors import raise_all

Routing = Literal["least", "random"]
Metric = Literal["pending", "in_flight"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Arrival:
    """One request as its sender knows it.

    Attributes:
        at_s: when it is sent, seconds from the start.
        service_s: how long it takes alone on a replica, seconds.
        user: who sent it; requests of one user meet the same replica where the fleet is sticky.
    """

    at_s: float
    service_s: float
    user: int = 0


@dataclass(frozen=True)
class Autoscaler:
    """Kubernetes' rule: as many replicas as bring a metric to its target for each of them.

    Attributes:
        least: replicas, whatever the metric says; 1 or more.
        most: replicas, whatever the metric says.
        metric: "pending" counts the requests that wait (Triton's `nv_inference_pending_request_count`),
            "in_flight" also those at work.
        target: of the metric, for each replica.
        every_s: between two looks, seconds (HorizontalPodAutoscaler: 15).
        tolerance: share of the target by which the metric may be off without a change.
        stabilization_s: a smaller number is taken once no look within so many seconds asked for more.
    """

    least: int = 1
    most: int = 10
    metric: Metric = "in_flight"
    target: float = 1.0
    every_s: float = 15.0
    tolerance: float = 0.1
    stabilization_s: float = 300.0

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidRequest: naming each field that breaks its rule.
        """
        rules = {
            f"least must be 1 to most, got {self.least} and {self.most}": 1 <= self.least <= self.most,
            f"metric must be one of {', '.join(get_args(Metric))}, got {self.metric!r}": self.metric
            in get_args(Metric),
            f"target must be above 0, got {self.target}": 0 < self.target < math.inf,
            f"every_s must be above 0, got {self.every_s}": 0 < self.every_s < math.inf,
            f"tolerance must be 0 or more, got {self.tolerance}": self.tolerance >= 0,
            f"stabilization_s must be 0 or more, got {self.stabilization_s}": self.stabilization_s >= 0,
        }
        raise_all("capacity: autoscaler", [text for text, held in rules.items() if not held])

    def wanted(self, measured: float, current: int) -> int:
        """Return how many replicas one look asks for.

        Args:
            measured: the metric, summed over the fleet.
            current: replicas ordered and not ended.
        """
        if abs(measured / (self.target * current) - 1) <= self.tolerance:
            return current
        return min(max(math.ceil(measured / self.target), self.least), self.most)


@dataclass(frozen=True)
class Fleet:
    """What serves the arrivals.

    Attributes:
        replicas: at the start, all ready.
        rates: of k requests at work in one replica, k = 1, 2, ..., each goes this fast, as a share of its
            speed alone; as many are at work at a time as there are rates. (1.0,) is one instance, (1.0, 1.0)
            are two that do not feel each other, (1.0, 0.5) two that share one processor.
        routing: "least" takes the replica with the fewest requests, as a gateway that balances by outstanding
            requests does, "random" any, as connections through a Kubernetes service are spread.
        sticky: whether a user's later requests follow the first.
        queue_limit: requests that may wait in one replica, further ones are refused; None is no limit.
        start_s: from the order of a replica until it is ready, seconds.
        grace_s: that an ended replica is given for what it has, seconds; what is left then begins anew
            elsewhere.
        autoscaler: None keeps the number.
    """

    replicas: int = 1
    rates: tuple[float, ...] = (1.0,)
    routing: Routing = "least"
    sticky: bool = False
    queue_limit: int | None = None
    start_s: float = 0.0
    grace_s: float = math.inf
    autoscaler: Autoscaler | None = None

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            InvalidRequest: naming each field that breaks its rule.
        """
        limit = self.queue_limit
        rules = {
            f"replicas must be 1 or more, got {self.replicas}": self.replicas >= 1,
            f"rates must be one or more, each above 0, got {self.rates}": bool(self.rates)
            and all(0 < rate < math.inf for rate in self.rates),
            f"routing must be one of {', '.join(get_args(Routing))}, got {self.routing!r}": self.routing
            in get_args(Routing),
            f"queue_limit must be 0 or more, got {limit}": limit is None or limit >= 0,
            f"start_s must be 0 or more, got {self.start_s}": 0 <= self.start_s < math.inf,
            f"grace_s must be 0 or more, got {self.grace_s}": self.grace_s >= 0,
        }
        raise_all("capacity: fleet", [text for text, held in rules.items() if not held])

    @property
    def throughput(self) -> float:
        """Most service seconds that a replica gets done in a second."""
        return max(count * rate for count, rate in enumerate(self.rates, 1))


@dataclass(slots=True)
class Request:
    """What became of one arrival.

    Attributes:
        number: in the order of arrival.
        arrival: what was sent.
        started_s: when the work that was finished began; NaN where there was none, as for the next.
        finished_s: when the answer was there.
        lost: times that its replica ended before it was done.
        refused: whether a full queue turned it away.
    """

    number: int
    arrival: Arrival
    started_s: float = math.nan
    finished_s: float = math.nan
    lost: int = 0
    refused: bool = False


@dataclass(frozen=True)
class Run:
    """What a simulation found.

    Attributes:
        requests: in the order of arrival.
        ended_s: when the last was done, seconds from the start.
        held_s: replica-seconds from each order to the replica's end: what is paid for.
        wasted_s: service seconds that were done and lost with their replica.
        moved: sticky users who met another replica, because theirs had ended.
        timeline: (seconds, replicas held), at each change.
        throughput: of the fleet's replicas.
    """

    requests: Sequence[Request]
    ended_s: float
    held_s: float
    wasted_s: float
    moved: int
    timeline: Sequence[tuple[float, int]]
    throughput: float

    def waits_s(self, after_s: float = 0.0) -> Floats:
        """Return how long each answered request that was sent after a moment stood in queues, seconds."""
        return self._of(after_s, lambda request: request.started_s - request.arrival.at_s)

    def latencies_s(self, after_s: float = 0.0) -> Floats:
        """Return how long each took from its arrival to its answer, seconds."""
        return self._of(after_s, lambda request: request.finished_s - request.arrival.at_s)

    def delays_s(self, after_s: float = 0.0) -> Floats:
        """Return by how much each took longer than alone: waiting, slower work, lost work; seconds."""
        return self.latencies_s(after_s) - self._of(after_s, lambda request: request.arrival.service_s)

    def refused_share(self, after_s: float = 0.0) -> float:
        """Return the share of the requests sent after a moment that was turned away."""
        sent = [request.refused for request in self.requests if request.arrival.at_s >= after_s]
        return sum(sent) / len(sent) if sent else 0.0

    @property
    def lost(self) -> int:
        """Times that a request was lost with its replica."""
        return sum(request.lost for request in self.requests)

    @property
    def utilization(self) -> float:
        """Service seconds answered ÷ those that the held replicas could have done."""
        done_s = sum(each.arrival.service_s for each in self.requests if not each.refused)
        return done_s / (self.held_s * self.throughput)

    def _of(self, after_s: float, value: Callable[[Request], float]) -> Floats:
        chosen = (each for each in self.requests if not each.refused and each.arrival.at_s >= after_s)
        return np.array([value(request) for request in chosen], np.float64)


def simulate(fleet: Fleet, arrivals: Sequence[Arrival], seed: int = 0) -> Run:
    """Let a fleet serve arrivals until the last is done.

    Args:
        fleet: what serves.
        arrivals: one or more, in the order of their time.
        seed: of the router's choices; the same one gives the same run.

    Raises:
        InvalidRequest: there are no arrivals, or they are out of order.
    """
    times = [arrival.at_s for arrival in arrivals]
    if not times or times != sorted(times) or times[0] < 0:
        raise_all("capacity", ["arrivals must be one or more in the order of time, got others; try sorted()"])
    return _Simulation(fleet, arrivals, seed).run()


class _Replica:
    """Works on its requests at the fleet's rates; the others wait, first come first served."""

    def __init__(self, env: simpy.Environment, fleet: Fleet, answered: Callable[[_Replica], None]) -> None:
        self.ordered_s = env.now
        self.ended_s: float | None = None
        self.ready = self.draining = False
        self.users = 0
        self._env, self._rates, self._answered = env, fleet.rates, answered
        self._queue: deque[Request] = deque()
        # All at work go equally fast. So one clock of work serves all of them: a request is done when the
        # clock shows what it showed at its start plus its service time.
        self._active: list[tuple[float, int, Request]] = []
        self._clock_s = 0.0
        self._looked_s = env.now
        self._version = 0

    @property
    def pending(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return len(self._queue) + len(self._active)

    @property
    def full(self) -> bool:
        return len(self._active) == len(self._rates)

    def add(self, request: Request) -> None:
        self._queue.append(request)
        if not self.full:
            self._advance()
            self._begin()

    def abandon(self) -> tuple[list[Request], float]:
        """Give up everything; return it in the order of arrival, and the service seconds that are lost."""
        self._advance()
        self._version += 1
        wasted_s = sum(
            request.arrival.service_s - due_s + self._clock_s for due_s, _, request in self._active
        )
        left = sorted(
            [request for _, _, request in self._active] + list(self._queue), key=lambda each: each.number
        )
        self._active.clear()
        self._queue.clear()
        return left, wasted_s

    def _advance(self) -> None:
        if self._active:
            self._clock_s += (self._env.now - self._looked_s) * self._rates[len(self._active) - 1]
        self._looked_s = self._env.now

    def _begin(self) -> None:
        """Take what there is place for, and plan the next end."""
        while self._queue and not self.full:
            request = self._queue.popleft()
            request.started_s = self._env.now
            heappush(self._active, (self._clock_s + request.arrival.service_s, request.number, request))
        self._version += 1
        if self._active:
            left_s = (self._active[0][0] - self._clock_s) / self._rates[len(self._active) - 1]
            planned = self._env.timeout(max(left_s, 0.0), self._version)
            planned.callbacks.append(self._end)

    def _end(self, planned: simpy.Event) -> None:
        if planned.value != self._version:  # Another came or went since: it was planned anew.
            return
        self._advance()
        _, _, request = heappop(self._active)
        request.finished_s = self._env.now
        self._begin()
        self._answered(self)


class _Simulation:
    """Routes, scales and counts."""

    def __init__(self, fleet: Fleet, arrivals: Sequence[Arrival], seed: int) -> None:
        self._fleet, self._arrivals = fleet, arrivals
        self._env = simpy.Environment()
        self._random = random.Random(seed)
        self._requests: list[Request] = []
        self._replicas: list[_Replica] = []
        self._serving: list[_Replica] = []  # ready, and not draining
        self._homes: dict[int, _Replica] = {}
        self._open = len(arrivals)
        self._all_done = self._env.event()
        self._wasted_s = 0.0
        self._moved = 0
        self._timeline: list[tuple[float, int]] = []

    def run(self) -> Run:
        for _ in range(self._fleet.replicas):
            self._serve(self._order())
        self._env.process(self._arrive())
        if self._fleet.autoscaler is not None:
            self._env.process(self._scale(self._fleet.autoscaler))
        self._env.run(until=self._all_done)
        ended_s = self._env.now
        held_s = sum((replica.ended_s or ended_s) - replica.ordered_s for replica in self._replicas)
        return Run(
            self._requests,
            ended_s,
            held_s,
            self._wasted_s,
            self._moved,
            self._timeline,
            self._fleet.throughput,
        )

    def _arrive(self) -> Generator[simpy.Event, Any, None]:
        for number, arrival in enumerate(self._arrivals):
            yield self._env.timeout(max(arrival.at_s - self._env.now, 0.0))
            request = Request(number, arrival)
            self._requests.append(request)
            self._route(request)

    def _route(self, request: Request) -> None:
        replica = self._choose(request.arrival.user)
        limit = self._fleet.queue_limit
        if replica.full and limit is not None and replica.pending >= limit:
            request.refused = True
            self._close()
        else:
            replica.add(request)

    def _choose(self, user: int) -> _Replica:
        home = self._homes.get(user)
        if home is not None and not home.draining:
            return home
        candidates = self._serving  # Never empty: of those that are not ended, one at least is ready.
        if self._fleet.routing == "least":
            loads = [(replica.in_flight, replica.users) for replica in candidates]
            fewest = min(loads)
            candidates = [each for each, load in zip(candidates, loads, strict=True) if load == fewest]
        chosen = self._random.choice(candidates)
        if self._fleet.sticky:
            self._moved += home is not None
            self._homes[user] = chosen
            chosen.users += 1
        return chosen

    def _answered(self, replica: _Replica) -> None:
        self._close()
        if replica.draining and not replica.in_flight:
            self._gone(replica)

    def _close(self) -> None:
        self._open -= 1
        if not self._open:
            self._all_done.succeed()

    def _order(self) -> _Replica:
        replica = _Replica(self._env, self._fleet, self._answered)
        self._replicas.append(replica)
        self._note()
        return replica

    def _start(self, replica: _Replica) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(self._fleet.start_s)
        if not replica.draining:
            self._serve(replica)

    def _serve(self, replica: _Replica) -> None:
        replica.ready = True
        self._serving.append(replica)

    def _drain(self, replica: _Replica) -> Generator[simpy.Event, Any, None]:
        replica.draining = True
        if replica.ready:
            self._serving.remove(replica)
        if not replica.in_flight:
            self._gone(replica)
        elif self._fleet.grace_s < math.inf:
            yield self._env.timeout(self._fleet.grace_s)
            if replica.ended_s is None:
                left, wasted_s = replica.abandon()
                self._gone(replica)
                self._wasted_s += wasted_s
                for request in left:
                    request.lost += 1
                    self._route(request)

    def _gone(self, replica: _Replica) -> None:
        if replica.ended_s is None:
            replica.ended_s = self._env.now
            self._note()

    def _note(self) -> None:
        held = sum(replica.ended_s is None for replica in self._replicas)
        self._timeline.append((self._env.now, held))

    def _scale(self, autoscaler: Autoscaler) -> Generator[simpy.Event, Any, None]:
        looks = deque([(self._env.now, self._fleet.replicas)])
        while True:
            yield self._env.timeout(autoscaler.every_s)
            current = [replica for replica in self._replicas if not replica.draining]
            counted = [getattr(replica, autoscaler.metric) for replica in current]
            wanted = autoscaler.wanted(sum(counted), len(current))
            looks.append((self._env.now, wanted))
            while looks[0][0] < self._env.now - autoscaler.stabilization_s:
                looks.popleft()
            for _ in range(wanted - len(current)):
                self._env.process(self._start(self._order()))
            # As a ReplicaSet does: those that are not ready first, then the youngest.
            surplus = len(current) - max(most for _, most in looks)
            ending = sorted(current, key=lambda each: (each.ready, -each.ordered_s))[: max(surplus, 0)]
            for replica in ending:
                self._env.process(self._drain(replica))
