"""Discrete-event model of a Triton fleet: replicas with their queues, an autoscaler, cold starts, sessions.

Arrivals come from :mod:`slipway_loadtests.capacity.arrivals`. A router sends each to a replica, which works
on as many requests at a time as it has rates and keeps the others in its own queue, as Triton does; the fleet
has no common queue. An autoscaler reads the queues as Kubernetes' HorizontalPodAutoscaler does. It orders
replicas, which are ready after their cold start, and ends others, which finish their requests within the
grace period or lose them. :func:`simulate` returns a :class:`SimulationResult`, from which every figure is
computed.

A session that occupies a place on a GPU is a request whose service lasts as long as the session.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from slipway_loadtests.capacity.arrivals import Arrival
from slipway_loadtests.capacity.fleet import Autoscaler, Fleet
from slipway_serving.protocol.errors import raise_all

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Request:
    """State of one arrival.

    Attributes:
        number: Position in the order of arrival.
        arrival: Arrival that sent it.
        started_s: Time at which the completed work began, in seconds; NaN if there was none.
        finished_s: Time of the answer, in seconds; NaN if there was none.
        lost: Number of times that its replica ended before the request was done.
        refused: True if a full queue rejected it.
    """

    number: int
    arrival: Arrival
    started_s: float = math.nan
    finished_s: float = math.nan
    lost: int = 0
    refused: bool = False


@dataclass(frozen=True)
class SimulationResult:
    """Result of a simulation.

    Attributes:
        requests: Requests in the order of arrival.
        ended_s: Time at which the last was done, in seconds from the start.
        held_s: Replica-seconds from each order to the replica's end, which is what costs money.
        wasted_s: Service seconds of work that was lost with its replica.
        moved: Number of times that a sticky user moved to another replica, because the old one had ended.
        timeline: Pairs of (seconds, replicas held), at each change.
        throughput: Most service seconds per second of each replica.
    """

    requests: Sequence[Request]
    ended_s: float
    held_s: float
    wasted_s: float
    moved: int
    timeline: Sequence[tuple[float, int]]
    throughput: float

    def waits_s(self, after_s: float = 0.0) -> Floats:
        """Return the queue time of each answered request that was sent after a time, in seconds."""
        return self._of(after_s, lambda request: request.started_s - request.arrival.at_s)

    def latencies_s(self, after_s: float = 0.0) -> Floats:
        """Return the time from arrival to answer of each request, in seconds."""
        return self._of(after_s, lambda request: request.finished_s - request.arrival.at_s)

    def delays_s(self, after_s: float = 0.0) -> Floats:
        """Return how much longer each request took than alone (waiting, slower work, lost work), seconds."""
        return self.latencies_s(after_s) - self._of(after_s, lambda request: request.arrival.service_s)

    def refused_share(self, after_s: float = 0.0) -> float:
        """Return the refused share of the requests sent after a time."""
        sent = [request.refused for request in self.requests if request.arrival.at_s >= after_s]
        return sum(sent) / len(sent) if sent else 0.0

    @property
    def lost(self) -> int:
        """Number of times that a request was lost with its replica."""
        return sum(request.lost for request in self.requests)

    @property
    def utilization(self) -> float:
        """Answered service seconds ÷ service seconds that the held replicas could have done."""
        done_s = sum(each.arrival.service_s for each in self.requests if not each.refused)
        return done_s / (self.held_s * self.throughput)

    def _of(self, after_s: float, value: Callable[[Request], float]) -> Floats:
        chosen = (each for each in self.requests if not each.refused and each.arrival.at_s >= after_s)
        return np.array([value(request) for request in chosen], np.float64)


def simulate(fleet: Fleet, arrivals: Sequence[Arrival], seed: int = 0) -> SimulationResult:
    """Simulate a fleet that serves arrivals until the last is done.

    Args:
        fleet: Fleet that serves.
        arrivals: Arrivals, at least one, in the order of their time.
        seed: Seed of the router's choices; the same one gives the same run.

    Raises:
        InvalidRequest: There are no arrivals, or they are out of order.
    """
    times = [arrival.at_s for arrival in arrivals]
    if not times or times != sorted(times) or times[0] < 0:
        raise_all("capacity", ["arrivals must be one or more in the order of time, got others; try sorted()"])
    return _Simulation(fleet, arrivals, seed).run()


class _Replica:
    """Replica that works on its requests at the fleet's rates; the others wait, first come first served."""

    def __init__(self, env: simpy.Environment, fleet: Fleet, answered: Callable[[_Replica], None]) -> None:
        self.ordered_s = env.now
        self.ended_s: float | None = None
        self.ready = self.draining = False
        self.users = 0
        self._env, self._rates, self._answered = env, fleet.rates, answered
        self._queue: deque[Request] = deque()
        # All requests at work progress equally fast, so one work clock serves all of them: a request is done
        # when the clock shows its value at the start plus the service time.
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
        """Give up all requests; return them in the order of arrival, and the lost service seconds."""
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
        """Start queued requests while there is room, and schedule the next completion."""
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
        if planned.value != self._version:  # This completion was rescheduled.
            return
        self._advance()
        _, _, request = heappop(self._active)
        request.finished_s = self._env.now
        self._begin()
        self._answered(self)


class _Simulation:
    """State of one simulation: it routes, scales and counts."""

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

    def run(self) -> SimulationResult:
        for _ in range(self._fleet.replicas):
            self._serve(self._order())
        self._env.process(self._arrive())
        if self._fleet.autoscaler is not None:
            self._env.process(self._scale(self._fleet.autoscaler))
        self._env.run(until=self._all_done)
        ended_s = self._env.now
        held_s = sum((replica.ended_s or ended_s) - replica.ordered_s for replica in self._replicas)
        return SimulationResult(
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
        candidates = self._serving  # Never empty: at least one running replica is ready.
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
            # End replicas as a ReplicaSet does: first those that are not ready, then the youngest.
            surplus = len(current) - max(most for _, most in looks)
            ending = sorted(current, key=lambda each: (each.ready, -each.ordered_s))[: max(surplus, 0)]
            for replica in ending:
                self._env.process(self._drain(replica))
