"""State of one Triton server and the places that this gateway takes on it.

The poll (:mod:`slipway_gateway.replicas.poll`) writes what the server reports, and :class:`Replica` adds
what this gateway runs there. All of it lives in one event loop, so nothing needs a lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from slipway_client import AsyncClient
from slipway_gateway.replicas.metrics import MetricsPage
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.slots.slots import SLOTS_PARAMETER

SESSIONS_PARAMETER = "max_sessions"
DEFAULT_CONCURRENCY = 4
"""Largest number of requests of one pipeline on one replica. Triton has an open crash under many pipelines
that call other models at once (server#8882)."""


class ReplicaState(StrEnum):
    """State of a replica: it takes new work, only finishes its work, or does not answer."""

    READY = "ready"
    DRAINING = "draining"
    UNREACHABLE = "unreachable"


@dataclass(eq=False)
class Replica:
    """One Triton server.

    Attributes:
        url: Address of the server's gRPC or HTTP port.
        client: Client with this one address.
        metrics_url: URL of the server's metrics page; None if it is not known.
        state: State by the last poll.
        models: Models that are ready.
        parameters: Parameters of the configuration of each model that was asked for.
        metrics: Numbers of the last metrics page; None if there is none.
        reason: Sentence that says why the replica is not ready; empty if it is.
        is_withdrawn: True if the name service no longer has the address.
    """

    url: str
    client: AsyncClient
    metrics_url: str | None = None
    state: ReplicaState = ReplicaState.UNREACHABLE
    models: frozenset[str] = frozenset()
    parameters: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics: MetricsPage | None = None
    reason: str = "not polled yet"
    is_withdrawn: bool = False
    _running: Counter[str] = field(default_factory=Counter)
    _sessions: Counter[str] = field(default_factory=Counter)
    _others: dict[str, int] = field(default_factory=dict)
    _full: set[str] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """True if the replica takes new work."""
        return self.state is ReplicaState.READY

    @property
    def is_idle(self) -> bool:
        """True if this gateway runs nothing on the replica."""
        return not self._running.total() and not self._sessions.total()

    def running(self, model: str) -> int:
        """Return how many requests of a model this gateway runs on the replica."""
        return self._running[model]

    def sessions(self, model: str) -> int:
        """Return how many sessions of a model this gateway has on the replica."""
        return self._sessions[model]

    def free_places(self, model: str, concurrency: int | None) -> int:
        """Return how many further requests of a model this gateway may send.

        Args:
            model: Name of a served model.
            concurrency: Largest number of requests of one model on one replica; None takes
                :data:`DEFAULT_CONCURRENCY`.
        """
        if not self.is_ready or model not in self.models:
            return 0
        limit = DEFAULT_CONCURRENCY if concurrency is None else concurrency
        if slots := self.parameters.get(model, {}).get(SLOTS_PARAMETER):
            limit = min(limit, positive(model, SLOTS_PARAMETER, slots))
        return max(0, limit - self._running[model] - self._others.get(model, 0))

    def free_sessions(self, model: str) -> int:
        """Return how many further sessions of a model this gateway may open."""
        if not self.is_ready or model not in self.models or model in self._full:
            return 0
        limit_text = self.parameters.get(model, {}).get(SESSIONS_PARAMETER)
        if limit_text is None:
            return 1
        limit, ours = positive(model, SESSIONS_PARAMETER, limit_text), self._sessions[model]
        reported = self.metrics.sessions_open.get(model, 0) if self.metrics is not None else 0
        # The page is up to two seconds old, so sessions that this gateway has just opened are not in it.
        return max(0, limit - max(ours, reported))

    @contextmanager
    def run(self, model: str) -> Iterator[Replica]:
        """Count a request of a model while the block runs."""
        self._running[model] += 1
        try:
            yield self
        finally:
            self._running[model] -= 1

    def add_session(self, model: str) -> None:
        """Count a session that this gateway opens."""
        self._sessions[model] += 1

    def remove_session(self, model: str) -> None:
        """Count the end of a session that this gateway opened."""
        self._sessions[model] -= 1
        self._full.discard(model)

    def record_full(self, model: str) -> None:
        """Record that the server refused a session; the next poll or the next end of a session clears it."""
        self._full.add(model)

    def record_metrics(self, page: MetricsPage | None) -> None:
        """Record the numbers of the metrics page, and what other callers run by them."""
        self.metrics = page
        self._full.clear()
        counted = {} if page is None else page.requests_running
        # Two polls in a row must show the requests of others: Triton publishes the numbers once a second, so
        # a request of ours that has just ended is still in the page.
        earlier, self._others = self._others, {}
        for model, running in counted.items():
            others = max(0, running - self._running[model])
            self._others[model] = min(others, earlier.get(model, others))


def positive(model: str, name: str, text: str) -> int:
    """Return the value of a model's parameter.

    Raises:
        InvalidRequest: The value is not a whole number above 0.
    """
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise InvalidRequest(
        f"{model}: {name} must be a whole number above 0 in the model's config.pbtxt, got {text!r}; try 1"
    )
