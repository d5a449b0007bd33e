"""Poll of a replica: its readiness, its models and their parameters, and its metrics page.

A replica is draining if it answers and takes no new work: it reports that it is not ready, one of its models
refuses requests since the server shuts down, or the name service no longer has its address.
"""

from __future__ import annotations

import asyncio
import logging

import httpx

from slipway_client import AsyncClient
from slipway_gateway.replicas.metrics import read_metrics
from slipway_gateway.replicas.replica import Replica, ReplicaState
from slipway_gateway.signal import Signal
from slipway_serving.protocol.errors import NotReady, SlipwayError

_LOG = logging.getLogger(__name__)
_METRICS_S = 2.0
_SHUTDOWN_S = 10.0
"""Time for which a replica counts as draining after it refused a request, in seconds."""


class Poll:
    """Poll of all replicas.

    Args:
        poll_s: Time between two polls of a replica, in seconds.
        changed: Signal that is given when a replica's state or models change.
    """

    def __init__(self, poll_s: float, changed: Signal) -> None:
        self._poll_s, self._changed = poll_s, changed
        # The metrics page belongs to a server in the cluster, so the proxy of the environment is not used.
        self._http = httpx.AsyncClient(timeout=_METRICS_S, trust_env=False)
        self._refused_until: dict[str, float] = {}
        self._unreadable: set[str] = set()

    async def close(self) -> None:
        """Close the connections to the metrics pages."""
        await self._http.aclose()

    async def for_ever(self, replica: Replica) -> None:
        """Poll a replica until the task is cancelled."""
        while True:
            await asyncio.sleep(self._poll_s)
            await self.once(replica)

    async def once(self, replica: Replica) -> None:
        """Poll a replica once."""
        before = (replica.state, replica.models)
        try:
            await self._read_metrics(replica)
            await self._read_models(replica)
        except SlipwayError as error:
            replica.reason = str(error)
            live = await self._is_live(replica.client)
            replica.state = ReplicaState.DRAINING if live else ReplicaState.UNREACHABLE
            if not live:
                replica.parameters.clear()
                self._refused_until.pop(replica.url, None)
        except Exception as error:  # noqa: BLE001 - a poll that ended would leave the replica's state as it is for ever
            _LOG.exception("%s: the poll failed", replica.url)
            replica.state, replica.reason = ReplicaState.UNREACHABLE, type(error).__name__
        if before != (replica.state, replica.models):
            _LOG.info("%s is %s %s", replica.url, replica.state, replica.reason)
            self._changed.give()

    async def parameters(self, replica: Replica, model: str) -> dict[str, str]:
        """Return the parameters of a model's configuration, which are asked for once.

        Raises:
            NotReady: The server does not answer, or has no such model.
        """
        if model not in replica.parameters:
            replica.parameters[model] = await replica.client.model_parameters(model)
        return replica.parameters[model]

    def record_shutdown(self, replica: Replica) -> None:
        """Record that a replica refused a request because it shuts down."""
        self._refused_until[replica.url] = asyncio.get_running_loop().time() + _SHUTDOWN_S
        if replica.state is ReplicaState.READY:
            replica.state, replica.reason = ReplicaState.DRAINING, "it refuses requests since it shuts down"
            self._changed.give()

    def set_withdrawn(self, replica: Replica, *, withdrawn: bool) -> None:
        """Record whether the name service has the replica's address."""
        replica.is_withdrawn = withdrawn
        if withdrawn and replica.state is ReplicaState.READY:
            replica.state, replica.reason = (
                ReplicaState.DRAINING,
                "the name service has withdrawn its address",
            )
            self._changed.give()

    async def _read_models(self, replica: Replica) -> None:
        await replica.client.check_ready()
        replica.models = frozenset(await replica.client.models())
        for model in replica.parameters.keys() - replica.models:
            del replica.parameters[model]  # a model that is loaded again may have other parameters
        for model in replica.models - replica.parameters.keys():
            await self.parameters(replica, model)
        replica.state, replica.reason = self._state(replica)

    def _state(self, replica: Replica) -> tuple[ReplicaState, str]:
        """Return the state of a replica that reports that it is ready, and the reason."""
        if replica.is_withdrawn:
            return ReplicaState.DRAINING, "the name service has withdrawn its address"
        if replica.metrics is not None and replica.metrics.shutting_down:
            return ReplicaState.DRAINING, "it refuses requests since it shuts down"
        if self._refused_until.get(replica.url, 0.0) > asyncio.get_running_loop().time():
            return ReplicaState.DRAINING, "it refuses requests since it shuts down"
        return ReplicaState.READY, ""

    async def _read_metrics(self, replica: Replica) -> None:
        if replica.metrics_url is None:
            replica.record_metrics(None)
            return
        try:
            replica.record_metrics(await read_metrics(self._http, replica.metrics_url))
            self._unreadable.discard(replica.url)
        except NotReady as error:
            replica.record_metrics(None)
            if replica.url not in self._unreadable:
                self._unreadable.add(replica.url)
                _LOG.warning("%s", error)

    @staticmethod
    async def _is_live(client: AsyncClient) -> bool:
        try:
            return await client.is_live()
        except SlipwayError:
            return False
