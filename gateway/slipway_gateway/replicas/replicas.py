"""All replicas of the gateway: which are ready, which serve a model, and where a request or a session goes.

One task polls each replica, and one resolves the host names again. A request takes a place on the replica
with the most free places. A session takes a place on the replica with the most free sessions, or waits in
line. :attr:`Replicas.changed` tells sessions that a replica drains.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from slipway_client import AsyncClient, RetryPolicy
from slipway_gateway.replicas.addresses import (
    GivenAddress,
    Resolve,
    given_addresses,
    metrics_url,
    resolve,
)
from slipway_gateway.replicas.poll import Poll
from slipway_gateway.replicas.replica import DEFAULT_CONCURRENCY, Replica, ReplicaState
from slipway_gateway.replicas.session_line import OnPosition, SessionLine, SessionPlace
from slipway_gateway.signal import Signal
from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import InvalidRequest, NotReady

RESOLVE_S = 5.0
"""Time between two resolutions of the host names, in seconds."""


@dataclass(frozen=True)
class ServedModel:
    """Model that at least one replica serves.

    Attributes:
        name: Name of the served model.
        ready: Number of replicas that serve it and take new work.
        parameters: Parameters of its configuration on one of them.
    """

    name: str
    ready: int
    parameters: Mapping[str, str]


class Replicas:
    """Replicas behind the gateway, for one event loop.

    Args:
        addresses: Addresses of Triton's gRPC or HTTP ports; a host name may stand for several replicas.
        concurrency: Largest number of requests of one model on one replica; None takes
            :data:`~slipway_gateway.replicas.replica.DEFAULT_CONCURRENCY`.
        metrics_port: Port of the metrics of every replica; None or 0 reads no metrics.
        tls: Folder of certificates for addresses with TLS.
        poll_s: Time between two polls of a replica, in seconds.
        resolver: Function that resolves a host name.
        metrics_urls: URLs of the metrics of single replicas by address, in place of `metrics_port`.

    Attributes:
        changed: Signal that is given when the state or the models of a replica change, or a place gets free.

    Raises:
        InvalidRequest: An address, a time or the concurrency is invalid.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        concurrency: int | None = DEFAULT_CONCURRENCY,
        metrics_port: int | None = None,
        tls: Path | None = None,
        poll_s: float = 1.0,
        resolver: Resolve = resolve,
        metrics_urls: Mapping[str, str] | None = None,
    ) -> None:
        durations.check("replicas", "poll_s", poll_s)
        if concurrency is not None and concurrency < 1:
            raise InvalidRequest(f"gateway: concurrency must be 1 or more, got {concurrency}; try 4")
        self._given = given_addresses(addresses)
        self._concurrency, self._metrics_port, self._tls = concurrency, metrics_port, tls
        self._metrics_urls, self._resolver = metrics_urls or {}, resolver
        self.changed = Signal()
        self._poll = Poll(poll_s, self.changed)
        self._replicas: dict[str, Replica] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._resolved: dict[GivenAddress, Sequence[str]] = {}
        self._resolving: asyncio.Task[None] | None = None
        self._line = SessionLine(self, self.changed)

    async def start(self) -> None:
        """Resolve the names, poll every replica once, and go on in the background."""
        await self._resolve()
        await asyncio.gather(*(self._poll.once(replica) for replica in self.all))
        for replica in self.all:
            self._begin(replica)
        self._resolving = asyncio.create_task(self._resolve_for_ever(), name="replicas")

    async def close(self) -> None:
        """End the background work and close all connections."""
        tasks = [*self._polls.values(), *([self._resolving] if self._resolving is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._poll.close()
        for replica in self.all:
            await replica.client.close()

    @property
    def all(self) -> tuple[Replica, ...]:
        """All replicas, ready or not."""
        return tuple(self._replicas.values())

    def ready(self, model: str | None = None) -> tuple[Replica, ...]:
        """Return the replicas that take new work, of a model if one is given."""
        return tuple(each for each in self.all if each.is_ready and (model is None or model in each.models))

    def free(self) -> dict[str, int]:
        """Return the number of free places by model, over all ready replicas."""
        free: dict[str, int] = {}
        for replica in self.ready():
            for model in replica.models:
                free[model] = free.get(model, 0) + replica.free_places(model, self._concurrency)
        return free

    def take(
        self, model: str, *, without: frozenset[str] = frozenset()
    ) -> AbstractContextManager[Replica] | None:
        """Take a place for a request on the least loaded replica; None if there is no free place.

        Args:
            model: Name of the served model.
            without: Addresses of replicas that must not get the request.

        Returns:
            A context manager whose block may send the request; the place is taken at once, and leaving the
            block gives it back.
        """
        free = [
            (places, replica)
            for replica in self.ready(model)
            if replica.url not in without and (places := replica.free_places(model, self._concurrency))
        ]
        if not free:
            return None
        _, replica = max(free, key=lambda each: (each[0], -each[1].running(model)))
        stack = contextlib.ExitStack()
        stack.callback(self.changed.give)
        stack.enter_context(replica.run(model))
        return _Taken(replica, stack)

    async def take_session(
        self,
        model: str,
        *,
        timeout_s: float | None = None,
        on_position: OnPosition | None = None,
        without: frozenset[str] = frozenset(),
        first: bool = False,
    ) -> SessionPlace:
        """Take a place for a session; wait in line while all sessions are taken.

        Args:
            model: Name of the served model.
            timeout_s: Longest wait in seconds; None waits without a limit.
            on_position: Callback that receives the position in line, 1 is the next, and the length of the
                line, whenever they change.
            without: Addresses of replicas that must not get the session.
            first: True to wait in front of the line, for a session that must leave its replica.

        Raises:
            NotReady: No ready replica serves the model.
            Overloaded: No session became free in time, or the line is full.
        """
        return await self._line.take(model, timeout_s, on_position, without, first=first)

    def waiting(self) -> dict[str, int]:
        """Return how many callers wait for a session, by model; models without any are left out."""
        return self._line.lengths()

    async def parameters(self, model: str) -> dict[str, str]:
        """Return the parameters of a model's configuration, from the first ready replica that serves it.

        Raises:
            NotReady: No ready replica serves the model.
        """
        for replica in self.ready(model):
            return dict(await self._poll.parameters(replica, model))
        raise self.unserved(model)

    def served(self) -> dict[str, ServedModel]:
        """Return the models that any replica serves, by name, also those of draining replicas."""
        found: dict[str, ServedModel] = {}
        for replica in self.all:
            if replica.state is ReplicaState.UNREACHABLE:
                continue
            for model in sorted(replica.models):
                known = found.get(model)
                parameters = known.parameters if known else replica.parameters.get(model, {})
                found[model] = ServedModel(
                    model, (known.ready if known else 0) + replica.is_ready, parameters
                )
        return found

    def unserved(self, model: str) -> NotReady:
        """Return the error for a model that no ready replica serves, with the state of the replicas."""
        states = "; ".join(f"{each.url} is {each.state}" for each in self.all) or "no replica was found"
        return NotReady(f"{model}: no replica that is ready serves the model ({states}); try again later")

    def record_shutdown(self, replica: Replica) -> None:
        """Record at once that a replica refused a request because it shuts down."""
        self._poll.record_shutdown(replica)

    async def _resolve_for_ever(self) -> None:
        while True:
            await asyncio.sleep(RESOLVE_S)
            await self._resolve()
            for url in [url for url in self._replicas if url not in self._polls]:
                self._begin(self._replicas[url])
            await self._forget()

    async def _resolve(self) -> None:
        """Add the replicas that the names have now, and withdraw those that they no longer have."""
        wanted: dict[str, None] = {}
        for given in self._given:
            if not given.is_name:
                wanted[given.text] = None
                continue
            with contextlib.suppress(OSError):  # the name service does not answer, so the last answer counts
                self._resolved[given] = await self._resolver(given.host)
            wanted.update(dict.fromkeys(given.at(ip) for ip in self._resolved.get(given, ())))
        for url in wanted:
            if url not in self._replicas:
                self._replicas[url] = self._make(url)
        for url, replica in self._replicas.items():
            self._poll.set_withdrawn(replica, withdrawn=url not in wanted)

    def _make(self, url: str) -> Replica:
        # A request that fails goes to another replica, which this class chooses and not the client.
        client = AsyncClient(url, retry=RetryPolicy(budget_s=0), connect_timeout_s=5.0, tls=self._tls)
        page = self._metrics_urls.get(url) or metrics_url(url, self._metrics_port)
        return Replica(url, client, page)

    def _begin(self, replica: Replica) -> None:
        self._polls[replica.url] = asyncio.create_task(self._poll.for_ever(replica), name=replica.url)

    async def _forget(self) -> None:
        """Forget withdrawn replicas that do not answer or run nothing of ours."""
        for url, replica in tuple(self._replicas.items()):
            is_gone = replica.state is ReplicaState.UNREACHABLE or replica.is_idle
            if replica.is_withdrawn and is_gone and url in self._polls:
                del self._replicas[url]
                task = self._polls.pop(url)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await replica.client.close()
                self.changed.give()


@dataclass(frozen=True)
class _Taken(AbstractContextManager[Replica]):
    """Place of a request, which leaving the block gives back."""

    replica: Replica
    stack: contextlib.ExitStack

    def __enter__(self) -> Replica:
        return self.replica

    def __exit__(self, *_: object) -> None:
        self.stack.close()
