"""The asyncio client: :class:`AsyncClient` is :class:`Client` with ``await``.

Cancelling the task that iterates, or closing the iterator, cancels the request on the server. An iterator
left by ``break`` is closed by the event loop soon after; ``contextlib.aclosing`` closes it at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Protocol

from numpy.typing import NDArray

from slipway_client import generation
from slipway_client.generation import Event, Generation
from slipway_client.metadata import ModelMetadata, check_tensors
from slipway_client.retry import Attempts, Deadline, RetryPolicy
from slipway_client.tensors import Tensors, Turn
from slipway_serving.errors import InvalidRequest, NotReady, SlipwayError
from slipway_serving.wan_t2v.request import TextToVideoRequest


class AsyncClient:
    """A connection to one Triton server, for one event loop.

    Attributes:
        url: "HOST:PORT" of the server's gRPC or HTTP port; "grpcs://" or "https://" before it for TLS.
    """

    def __init__(
        self,
        url: str,
        protocol: generation.Protocol = "grpc",
        *,
        retry: RetryPolicy | None = None,
        connect_timeout_s: float = 10.0,
    ) -> None:
        """Prepare a connection; see :class:`Client`. It is made by the first call, in that call's loop."""
        if protocol not in ("grpc", "http"):
            raise InvalidRequest(f"client: protocol must be grpc or http, got {protocol!r}")
        self.url = url
        self._protocol = protocol
        self._retry = retry or RetryPolicy()
        self._connect_timeout_s = connect_timeout_s
        self._connected: _Transport | None = None
        self._known: dict[str, ModelMetadata] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; generations under way are cancelled."""
        if self._connected is not None:
            await self._connected.close()

    def generate(
        self, request: TextToVideoRequest, *, model: str = "wan_t2v", timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Generate a video; arguments, events and errors as :meth:`Client.generate`."""
        return self._events(Generation(request, model, timeout_s, self._protocol, self._retry))

    async def infer(
        self,
        model: str,
        tensors: Mapping[str, NDArray[Any]],
        timeout_s: float | None = None,
        turn: Turn | None = None,
    ) -> Tensors:
        """Call any model that answers once; arguments and errors as :meth:`Client.infer`."""
        deadline = Deadline(timeout_s, model)
        attempts = Attempts(self._retry, deadline)
        while True:
            try:
                check_tensors(await self._ready_metadata(model), tensors)
                return await self._transport.infer(model, tensors, deadline, turn)
            except SlipwayError as error:
                if turn is not None:
                    raise
                await self._pause(model, attempts.wait_s(error))

    async def is_ready(self, model: str | None = None) -> bool:
        """Tell whether the server answers and is ready, or one of its models is; without retries."""
        try:
            if model is None:
                return await self._transport.server_ready()
            return await self._transport.model_ready(model)
        except NotReady:
            return False

    async def model_metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors; without retries.

        Raises:
            NotReady: no server, or no such model.
        """
        return await self._transport.metadata(model)

    async def _events(self, job: Generation) -> AsyncGenerator[Event, None]:
        while True:
            try:
                job.check(await self._ready_metadata(job.model))
                async with aclosing(
                    self._transport.stream(job.model, job.tensors, job.deadline)
                ) as responses:
                    async for response in responses:
                        if (progress := job.add(response)) is not None:
                            yield progress
                yield job.result()
            except SlipwayError as error:
                await self._pause(job.model, job.wait_s(error))
            else:
                return

    async def _ready_metadata(self, model: str) -> ModelMetadata:
        """Return a model's metadata; the first time after asking whether server and model are ready."""
        if model not in self._known:
            metadata = await self._transport.metadata(model)
            if not await self._transport.model_ready(model):
                raise generation.not_ready(model, self.url)
            if not await self._transport.server_ready():
                raise generation.not_ready(f"{model}'s server", self.url)
            self._known[model] = metadata
        return self._known[model]

    async def _pause(self, model: str, wait_s: float) -> None:
        self._known.pop(model, None)
        await asyncio.sleep(wait_s)

    @property
    def _transport(self) -> _Transport:
        if self._connected is None:
            self._connected = _transport(self.url, self._protocol, self._connect_timeout_s)
        return self._connected


class _Transport(Protocol):
    """What either protocol can do."""

    async def close(self) -> None: ...
    async def server_ready(self) -> bool: ...
    async def model_ready(self, model: str) -> bool: ...
    async def metadata(self, model: str) -> ModelMetadata: ...
    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn | None = None
    ) -> Tensors: ...
    def stream(self, model: str, tensors: Tensors, deadline: Deadline) -> AsyncGenerator[Tensors, None]: ...


def _transport(url: str, protocol: generation.Protocol, connect_timeout_s: float) -> _Transport:
    # Imported here: a program loads only the protocol that it uses.
    if protocol == "grpc":
        from slipway_client.over_grpc import AsyncGrpcTransport

        return AsyncGrpcTransport(url, connect_timeout_s)
    from slipway_client.over_http import AsyncHttpTransport

    return AsyncHttpTransport(url, connect_timeout_s)
