"""Asyncio client: :class:`AsyncClient` has the methods of :class:`Client`, to be awaited.

Cancelling the task that iterates, or closing the iterator, cancels the request on the server. After a
``break`` the event loop closes the iterator soon; ``contextlib.aclosing`` closes it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from numpy.typing import NDArray

from slipway_client import generation
from slipway_client.address import stated_protocol
from slipway_client.client import END_S
from slipway_client.decoding import decoding
from slipway_client.generation import Generation, SessionCodec
from slipway_client.metadata import ModelMetadata, check_tensors
from slipway_client.results import Assembler, Result
from slipway_client.retry import UNLIMITED, Attempts, Deadline, RetryPolicy
from slipway_client.snapshots import E, check_complete, single_event
from slipway_client.tensors import Tensors
from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import NotReady, SlipwayError
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.protocol.turns import NO_SESSION, Turn, Turns


class AsyncClient:
    """Client of one Triton server, for one event loop.

    Attributes:
        url: Address of the server's gRPC or HTTP port, "HOST:PORT". The scheme "grpc://" or "http://" states
            the protocol; "grpcs://" or "https://" adds TLS.
    """

    def __init__(
        self,
        url: str,
        protocol: generation.Protocol | None = None,
        *,
        retry: RetryPolicy | None = None,
        connect_timeout_s: float = 10.0,
        tls: Path | None = None,
    ) -> None:
        """Prepare a connection; see :class:`Client`. The first call opens it, in that call's event loop."""
        self.url = url
        self._protocol: generation.Protocol = stated_protocol(url, protocol) or "grpc"
        durations.check("client", "connect_timeout_s", connect_timeout_s)
        self._retry = retry or RetryPolicy()
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._connected: _Transport | None = None
        self._metadata: dict[str, ModelMetadata] = {}

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection and cancel the generations in progress."""
        if self._connected is not None:
            await self._connected.close()

    def generate(
        self, request: Request, *, model: str | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[Event | Result, None]:
        """Run a request; arguments, events and errors are those of :meth:`Client.generate`."""
        return self._generate(Generation(request, model, timeout_s, self._protocol, self._retry))

    def stream(
        self, request: Request, *, model: str | None = None, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Run a request and yield every event as it arrives, like :meth:`Client.stream`."""
        return self._events(Generation(request, model, timeout_s, self._protocol, self._retry))

    def session(
        self, request: Request, *, model: str | None = None, session_id: int | str | None = None
    ) -> AsyncSession:
        """Open a session, ``async with client.session(request) as session``; see :meth:`Client.session`."""
        return AsyncSession(self._turn, SessionCodec(request, model, self._protocol), Turns(session_id))

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
        codec = SessionCodec(request, model, self._protocol)
        session = AsyncSession(self._turn, codec, Turns(session_id))
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
        while True:
            try:
                check_tensors(await self._ready_metadata(model, deadline), tensors)
                return await self._transport.infer(model, tensors, deadline, turn)
            except SlipwayError as error:
                if turn.id:
                    raise
                await self._pause(model, attempts.wait_s(error))

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

    async def _generate(self, job: Generation) -> AsyncGenerator[Event | Result, None]:
        """Yield events as they arrive, then the joined results."""
        assembler = Assembler(job.request, job.model)
        async with aclosing(self._events(job)) as events:
            async for event in events:
                with decoding(self.url, job.model):
                    complete = assembler.add(event)
                if complete is not None:
                    yield complete
        with decoding(self.url, job.model):
            results = assembler.results()
        for result in results:
            yield result

    async def _events(self, job: Generation) -> AsyncGenerator[Event, None]:
        """Yield the events of a generation, with another attempt after each refusal."""
        while True:
            try:
                job.check(await self._ready_metadata(job.model, job.deadline))
                responses = self._responses(job.request, job.model, job.tensors, job.deadline, NO_SESSION)
                async with aclosing(responses):
                    async for response in responses:
                        with decoding(self.url, job.model):
                            event = job.event(response)
                        yield event
            except SlipwayError as error:
                await self._pause(job.model, job.wait_s(error))
            else:
                return

    async def _turn(
        self, codec: SessionCodec, content: Request | None, turn: Turn, timeout_s: float | None
    ) -> AsyncGenerator[Event, None]:
        """Send one turn of a session and yield its events; a turn is never retried."""
        deadline = Deadline(timeout_s, codec.model)
        tensors = codec.tensors(content, turn)
        check_tensors(await self._ready_metadata(codec.model, deadline), tensors)
        async with aclosing(self._responses(codec.kind, codec.model, tensors, deadline, turn)) as responses:
            async for response in responses:
                if content is not None:
                    with decoding(self.url, codec.model):
                        event = codec.event(response)
                    yield event

    async def _responses(
        self,
        request: Request | type[Request],
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn,
    ) -> AsyncGenerator[Tensors, None]:
        """Yield the responses of a model that streams, or the one response of any other model."""
        if not request.streams:
            yield await self._transport.infer(model, tensors, deadline, turn)
            return
        async with aclosing(self._transport.stream(model, tensors, deadline, turn)) as responses:
            async for response in responses:
                yield response

    async def _ready_metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        """Return a model's metadata; the first call also checks that server and model are ready."""
        if model not in self._metadata:
            metadata = await self._transport.metadata(model, deadline)
            if not await self._transport.model_ready(model, deadline):
                raise generation.not_ready_error(model, self.url)
            if not await self._transport.server_ready(deadline):
                raise generation.not_ready_error(f"{model}'s server", self.url)
            self._metadata[model] = metadata
        return self._metadata[model]

    async def _pause(self, model: str, wait_s: float) -> None:
        self._metadata.pop(model, None)
        await asyncio.sleep(wait_s)

    @property
    def _transport(self) -> _Transport:
        if self._connected is None:
            self._connected = _transport(self.url, self._protocol, self._connect_timeout_s, self._tls)
        return self._connected


class AsyncSession:
    """Session of a stateful model, see :meth:`AsyncClient.session`.

    Args:
        send: Callback that sends one turn, within a time limit in seconds, and yields its events.
        codec: Codec that encodes the turns and decodes the answers.
        turns: Turn counter of the session.
    """

    def __init__(
        self,
        send: Callable[[SessionCodec, Request | None, Turn, float | None], AsyncGenerator[Event, None]],
        codec: SessionCodec,
        turns: Turns,
    ) -> None:
        self._send, self._talk, self._turns = send, codec, turns

    @property
    def id(self) -> int | str:
        """Return the id by which the server knows the session."""
        return self._turns.id

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session on the server if it is open, even if the task was cancelled."""
        if (turn := self._turns.closing) is not None:
            self._turns.record_end()
            with contextlib.suppress(SlipwayError):
                async with aclosing(self._send(self._talk, None, turn, END_S)) as answers:
                    async for _ in answers:
                        pass

    async def step(
        self, turn: Request, *, last: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[Event, None]:
        """Send one turn and yield its events; see :meth:`ClientSession.step` for arguments and errors."""
        place = self._turns.next(last=last)
        try:
            async with aclosing(self._send(self._talk, turn, place, timeout_s)) as events:
                async for event in events:
                    yield event
        except BaseException as error:
            self._turns.record_failure(place, error)
            raise

    async def snapshot(self) -> AsyncGenerator[bytes, None]:
        """Yield the session's state in parts; see :meth:`ClientSession.snapshot`."""
        for number in itertools.count():
            part = await self.step_single(Snapshot(number), SnapshotPart)
            yield part.data
            if number + 1 >= part.parts:
                return

    async def step_single(self, turn: Request, kind: type[E]) -> E:
        """Send one turn and return its one event; see :meth:`ClientSession.step_single`."""
        return single_event([event async for event in self.step(turn)], kind)


async def _each(parts: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    if isinstance(parts, AsyncIterable):
        async for part in parts:
            yield part
    else:
        for part in parts:
            yield part


class _Transport(Protocol):
    """Calls that both the gRPC and the HTTP transport offer."""

    async def close(self) -> None: ...
    async def server_live(self) -> bool: ...
    async def server_ready(self, deadline: Deadline = UNLIMITED) -> bool: ...
    async def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool: ...
    async def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata: ...
    async def parameters(self, model: str) -> dict[str, str]: ...
    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors: ...
    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> AsyncGenerator[Tensors, None]: ...


def _transport(
    url: str, protocol: generation.Protocol, connect_timeout_s: float, tls: Path | None
) -> _Transport:
    """Create the transport of a protocol."""
    # Imported here so that a program loads only the protocol that it uses.
    if protocol == "grpc":
        from slipway_client.grpc.transport import AsyncGrpcTransport

        return AsyncGrpcTransport(url, connect_timeout_s, tls)
    from slipway_client.http.async_transport import AsyncHttpTransport

    return AsyncHttpTransport(url, connect_timeout_s, tls)
