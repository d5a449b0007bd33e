"""Asyncio client: :class:`AsyncClient` has the methods of :class:`Client`, to be awaited.

Cancelling the task that iterates, or closing the iterator, cancels the request on the server. After a
``break`` the event loop closes the iterator soon; ``contextlib.aclosing`` closes it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from slipway_client import generation
from slipway_client.decoding import decoding
from slipway_client.generation import Generation, SessionCodec, triton_priority
from slipway_client.metadata import ModelMetadata, check_tensors
from slipway_client.moving import ContinuedGeneration, Output
from slipway_client.retry import Attempts, Deadline, RetryPolicy
from slipway_client.server_list import Route, ServerList
from slipway_client.sessions import AsyncSession
from slipway_client.snapshots import check_complete
from slipway_client.tensors import Tensors
from slipway_client.transports import AsyncTransport, make_async_transport
from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import NotReady, SlipwayError
from slipway_serving.protocol.events import Event, FramesPart, VideoPart
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.snapshots.requests import Restore, Restored
from slipway_serving.protocol.turns import NO_SESSION, Turn, Turns


class AsyncClient:
    """Client of a Triton server, or of several that serve the same models, for one event loop.

    Attributes:
        url: Address in use, of a server's gRPC or HTTP port: "HOST:PORT". The scheme "grpc://" or "http://"
            states the protocol; "grpcs://" or "https://" adds TLS.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        protocol: generation.Protocol | None = None,
        *,
        retry: RetryPolicy | None = None,
        connect_timeout_s: float = 10.0,
        tls: Path | None = None,
    ) -> None:
        """Prepare a connection; see :class:`Client`. The first call opens it, in that call's event loop."""
        self._servers = ServerList.of(url, protocol)
        self.url = self._servers.addresses[0]
        durations.check("client", "connect_timeout_s", connect_timeout_s)
        self._retry = retry or RetryPolicy()
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._transports: dict[str, AsyncTransport] = {}
        self._metadata: dict[tuple[str, str], ModelMetadata] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and cancel the generations in progress."""
        for transport in tuple(self._transports.values()):
            await transport.close()

    def generate(
        self,
        request: Request,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        stop: asyncio.Event | None = None,
        traceparent: str = "",
        on_part: Callable[[FramesPart | VideoPart], None] | None = None,
    ) -> AsyncGenerator[Output, None]:
        """Run a request; arguments, events and errors are those of :meth:`Client.generate`."""
        job = Generation(request, model, timeout_s, self._servers.protocol, self._retry, stop, traceparent)
        return self._generate(ContinuedGeneration(job, Route(self._servers, self.url), on_part), stop)

    def stream(
        self,
        request: Request,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        stop: asyncio.Event | None = None,
        traceparent: str = "",
    ) -> AsyncGenerator[Event, None]:
        """Run a request and yield every event as it arrives, like :meth:`Client.stream`."""
        job = Generation(request, model, timeout_s, self._servers.protocol, self._retry, stop, traceparent)
        return self._events(job, Route(self._servers, self.url), stop)

    def session(
        self, request: Request, *, model: str | None = None, session_id: int | str | None = None
    ) -> AsyncSession:
        """Open a session, ``async with client.session(request) as session``; see :meth:`Client.session`."""
        codec = SessionCodec(request, model, self._servers.protocol)
        return AsyncSession(partial(self._turn, self.url), codec, Turns(session_id))

    async def restore(
        self,
        request: type[Request],
        parts: Iterable[bytes] | AsyncIterable[bytes],
        *,
        model: str | None = None,
        session_id: int | str | None = None,
    ) -> AsyncSession:
        """Resume a session from a snapshot: ``async with await client.restore(...) as session``.

        Arguments and errors are those of :meth:`Client.restore`.
        """
        codec = SessionCodec(request, model, self._servers.protocol)
        session = AsyncSession(partial(self._turn, self.url), codec, Turns(session_id))
        restored = None
        try:
            async for part in _each(parts):
                restored = await session.step_single(Restore(part), Restored)
            check_complete(codec.model, restored)
        except BaseException:
            await session.close()
            raise
        return session

    async def infer(
        self,
        model: str,
        tensors: Mapping[str, NDArray[Any]],
        timeout_s: float | None = None,
        turn: Turn = NO_SESSION,
    ) -> Tensors:
        """Call a model that sends one response; arguments and errors are those of :meth:`Client.infer`."""
        deadline = Deadline(timeout_s, model)
        attempts = Attempts(self._retry, deadline)
        route = Route(self._servers, self.url)
        while True:
            try:
                check_tensors(await self._ready_metadata(route.url, model, deadline), tensors)
                return await self._transport_to(route.url).infer(model, tensors, deadline, turn)
            except SlipwayError as error:
                if turn.id:
                    raise
                wait_s = attempts.wait_s(error)
                route.advance()
                await self._pause(model, route, wait_s)

    async def is_ready(self, model: str | None = None) -> bool:
        """Return True if the server, or one of its models, is ready. Does not retry."""
        try:
            await self.check_ready(model)
        except NotReady:
            return False
        return True

    async def check_ready(self, model: str | None = None) -> None:
        """Check that the server, or one of its models, is ready; see :meth:`Client.check_ready`."""
        if model is None:
            if not await self._transport.server_ready():
                raise generation.server_not_ready_error(self.url)
            return
        await self._transport.metadata(model)
        if not await self._transport.model_ready(model):
            raise generation.not_ready_error(model, self.url)

    async def is_live(self) -> bool:
        """Return True if the server answers, ready or not. Does not retry."""
        try:
            await self.check_live()
        except NotReady:
            return False
        return True

    async def check_live(self) -> None:
        """Check that the server answers, ready or not; see :meth:`Client.check_live`."""
        if not await self._transport.server_live():
            raise generation.not_live_error(self.url)

    async def model_metadata(self, model: str) -> ModelMetadata:
        """Fetch the metadata of a model's tensors. Does not retry.

        Raises:
            NotReady: No server answers, or it has no such model.
        """
        return await self._transport.metadata(model)

    async def model_parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration; see :meth:`Client.model_parameters`."""
        return await self._transport.parameters(model)

    async def models(self) -> tuple[str, ...]:
        """Fetch the names of the models that are ready; see :meth:`Client.models`."""
        return await self._transport.models()

    async def _generate(
        self, run: ContinuedGeneration, stop: asyncio.Event | None
    ) -> AsyncGenerator[Output, None]:
        """Yield events as they arrive, then the joined results; continue elsewhere where that is possible."""
        job, route = run.job, run.route
        while not run.is_over:
            try:
                async with aclosing(self._attempt(job, route, stop)) as events:
                    async for event in events:
                        with decoding(route.url, job.model):
                            outputs = run.add(event)
                        for output in outputs:
                            yield output
                with decoding(route.url, job.model):
                    outputs = run.end()
            except SlipwayError as error:
                outputs = run.fail(error)
            for output in outputs:
                yield output
            if run.error is not None:
                raise run.error
            if not run.is_over:
                if run.left_url is not None:
                    self._transport_to(run.left_url).retire()
                await self._pause(job.model, route, run.wait_s, stop)

    async def _events(
        self, job: Generation, route: Route, stop: asyncio.Event | None
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a generation, with another attempt after each refusal."""
        while True:
            try:
                async with aclosing(self._attempt(job, route, stop)) as events:
                    async for event in events:
                        yield event
            except SlipwayError as error:
                wait_s = job.wait_s(error)
                route.advance()
                await self._pause(job.model, route, wait_s, stop)
            else:
                return

    async def _attempt(
        self, job: Generation, route: Route, stop: asyncio.Event | None
    ) -> AsyncGenerator[Event, None]:
        """Send a request once and yield its events."""
        url = route.url
        job.check(await self._ready_metadata(url, job.model, job.deadline))
        responses = self._responses(url, job.request, job.model, job.tensors, job.deadline, job.turn, stop)
        async with aclosing(responses):
            async for response in responses:
                with decoding(url, job.model):
                    event = job.event(response)
                yield event

    async def _turn(
        self, url: str, codec: SessionCodec, content: Request | None, turn: Turn, timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        """Send one turn of a session and yield its events; a turn is never retried."""
        deadline = Deadline(timeout_s, codec.model)
        tensors = codec.tensors(content, turn)
        check_tensors(await self._ready_metadata(url, codec.model, deadline), tensors)
        async with aclosing(
            self._responses(url, codec.kind, codec.model, tensors, deadline, turn)
        ) as responses:
            async for response in responses:
                if content is not None:
                    with decoding(url, codec.model):
                        event = codec.event(response)
                    yield event

    async def _responses(
        self,
        url: str,
        request: Request | type[Request],
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[Tensors, None]:
        """Yield the responses of a model that streams, or the one response of any other model."""
        transport = self._transport_to(url)
        if not request.streams:
            yield await transport.infer(model, tensors, deadline, turn)
            return
        priority = triton_priority(request)
        responses = transport.stream(model, tensors, deadline, turn, priority=priority, stop=stop)
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def _ready_metadata(self, url: str, model: str, deadline: Deadline) -> ModelMetadata:
        """Return a model's metadata; the first call also checks that server and model are ready."""
        if (url, model) not in self._metadata:
            transport = self._transport_to(url)
            metadata = await transport.metadata(model, deadline)
            if not await transport.model_ready(model, deadline):
                raise generation.not_ready_error(model, url)
            if not await transport.server_ready(deadline):
                raise generation.not_ready_error(f"{model}'s server", url)
            self._metadata[url, model] = metadata
        return self._metadata[url, model]

    async def _pause(
        self, model: str, route: Route, wait_s: float, stop: asyncio.Event | None = None
    ) -> None:
        """Wait before the next attempt, but not longer than until a stop."""
        self.url = route.url
        for url in self._servers.addresses:
            self._metadata.pop((url, model), None)
        if stop is None:
            await asyncio.sleep(wait_s)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)

    @property
    def _transport(self) -> AsyncTransport:
        return self._transport_to(self.url)

    def _transport_to(self, url: str) -> AsyncTransport:
        if url not in self._transports:
            protocol = self._servers.protocol
            self._transports[url] = make_async_transport(url, protocol, self._connect_timeout_s, self._tls)
        return self._transports[url]


async def _each(parts: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(parts, AsyncIterable):
        async for part in parts:
            yield part
    else:
        for part in parts:
            yield part
