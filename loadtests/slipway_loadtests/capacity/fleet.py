"""Configuration of a simulated fleet: its replicas and its autoscaler.

:func:`slipway_loadtests.capacity.simulation.simulate` serves arrivals with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from slipway_serving.protocol.errors import raise_all

Routing = Literal["least", "random"]
Metric = Literal["pending", "in_flight"]


@dataclass(frozen=True)
class Autoscaler:
    """Kubernetes' scaling rule: as many replicas as bring a metric to its target per replica.

    Attributes:
        least: Smallest number of replicas, 1 or more.
        most: Largest number of replicas.
        metric: Metric of the load: "pending" counts the waiting requests (Triton's
            `nv_inference_pending_request_count`), "in_flight" also those at work.
        target: Target of the metric for each replica.
        every_s: Time between two evaluations, in seconds (HorizontalPodAutoscaler: 15).
        tolerance: Share of the target by which the metric may deviate without a change.
        stabilization_s: Window before scaling down, in seconds: a smaller number takes effect once no
            evaluation within the window asked for more.
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
            InvalidRequest: At least one field breaks its rule; the message names each.
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
        """Return how many replicas one evaluation asks for.

        Args:
            measured: Value of the metric, summed over the fleet.
            current: Number of replicas ordered and not ended.
        """
        if abs(measured / (self.target * current) - 1) <= self.tolerance:
            return current
        return min(max(math.ceil(measured / self.target), self.least), self.most)


@dataclass(frozen=True)
class Fleet:
    """Configuration of the fleet that serves the arrivals.

    Attributes:
        replicas: Number of replicas at the start, all ready.
        rates: Speed of each of k requests at work in one replica, k = 1, 2, ..., as a share of its speed
            alone; the number of rates is the most requests at work at a time. (1.0,) is one instance, (1.0,
            1.0) are two that do not slow each other, (1.0, 0.5) two that share one processor.
        routing: Routing rule: "least" chooses the replica with the fewest requests, as a gateway that
            balances by outstanding requests does; "random" chooses any, as a Kubernetes service spreads
            connections.
        sticky: True if a user's later requests follow the first.
        queue_limit: Largest number of waiting requests in one replica, which refuses further ones; None is no
            limit.
        start_s: Cold start of a replica, from its order until it is ready, in seconds.
        grace_s: Grace period of an ended replica for its requests, in seconds; the unfinished ones then begin
            anew elsewhere.
        autoscaler: Scaling rule; None keeps the number of replicas.
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
            InvalidRequest: At least one field breaks its rule; the message names each.
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
        """Most service seconds that a replica completes per second."""
        return max(count * rate for count, rate in enumerate(self.rates, 1))
