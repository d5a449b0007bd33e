"""Transports for Triton's gRPC protocol, blocking and asyncio: requests and responses as protobuf messages.

A generation is one ``ModelStreamInfer`` call with one request, half-closed at once, so the end of the stream
is the end of the answer. A call that the caller abandons, or whose time is over, is ended by a message
(:mod:`slipway_client.cancellation`), since Triton can crash when calls are cut; cutting is the last resort.
Errors arrive in the stream as text without a status, so Slipway's errors carry their code in brackets
(:mod:`slipway_serving.protocol.errors`). With the header ``triton_grpc_error`` Triton would send a real
status, but release 2.51 sometimes crashes on it when a request fails, so the header is not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slipway_client.address_errors import not_triton_error
from slipway_client.cancellation import (
    CANCEL_GRACE_S,
    DEADLINE_GRACE_S,
    FIND_REQUEST_S,
    async_stream_responses,
    cancel_message,
    new_request_id,
    request_found,
    stream_responses,
)
from slipway_client.connections import Pools
from slipway_client.decoding import ERRORS, decoding
from slipway_client.grpc import errors, messages
from slipway_client.metadata import ModelMetadata
from slipway_client.retry import UNLIMITED, Deadline
from slipway_client.stop_requests import async_stop_when_set, stop_when_set
from slipway_client.tensors import Tensors, turn_headers
from slipway_client.tls import load_tls
from slipway_serving.protocol.errors import Malformed, NotReady, SlipwayError
from slipway_serving.protocol.proxies import GRPC, Proxy, grpc_options, proxy_of
from slipway_serving.protocol.triton_identity import is_triton
from slipway_serving.protocol.turns import NO_SESSION, Turn

_INT32_MAX = 2**31 - 1
_OPTIONS = (
    ("grpc.max_send_message_length", _INT32_MAX),
    ("grpc.max_receive_message_length", _INT32_MAX),
    # Pings detect a host that died silently. Triton closes connections that ping more often than every 300 s
    # while no data flows, as in a long denoising step.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Otherwise the clients of one process share a connection, and a load balancer sees them as one.
    ("grpc.use_local_subchannel_pool", 1),
)
_TLS = "grpcs://"


class _Server:
    """State and decoding that both transports share.

    Attributes:
        proxy: Proxy from the environment that gRPC uses for this server; None for a direct connection.
    """

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None, protocol: Any) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self.proxy: Proxy | None = proxy_of(urlsplit(f"//{_host(url)}").netloc, GRPC)
        self._is_triton = False
        options = (*_OPTIONS, *grpc_options(self.proxy))
        make = partial(_connect, url, _credentials(url, certificates), options, count(), protocol)
        self._pools: Pools[_Connection] = Pools(make)

    def retire(self) -> None:
        """Let later requests take a new connection; requests in progress keep theirs."""
        self._pools.retire()

    def _verify_identity(self, answer: Any) -> None:
        """Check from the server's metadata that it is Triton, and remember it.

        Raises:
            NotTriton: The server is not Triton.
        """
        if not is_triton(answer.extensions):
            raise not_triton_error(self._url, "gRPC", self.proxy)
        self._is_triton = True

    def _tensors(self, answer: Any, model: str) -> Tensors:
        with decoding(self._url, model):
            return messages.tensors(answer)

    def _parse_message(self, message: Any, model: str) -> Tensors | SlipwayError:
        """Return the tensors or the error that a stream message carries."""
        try:
            return messages.stream_error(message) or self._tensors(message.infer_response, model)
        except Malformed as error:
            return error

    def _inference_error(self, error: grpc.RpcError, deadline: Deadline) -> SlipwayError:
        return errors.inference_error(self._url, error, deadline, self.proxy)

    def _probe_error(self, error: grpc.RpcError, limit_s: float) -> SlipwayError:
        return errors.probe_error(self._url, error, limit_s, self.proxy)


class GrpcTransport(_Server):
    """Blocking gRPC calls of one server. Thread-safe."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates, grpc)
        self._abandoned: set[Any] = set()

    def close(self) -> None:
        """Close the connection; open streams end as cancelled."""
        for call in tuple(self._abandoned):
            with contextlib.suppress(grpc.RpcError):
                call.result()
        for connection in self._pools.all():
            connection.channel.close()

    def check(self, deadline: Deadline = UNLIMITED) -> None:
        """Check that the server is Triton; after the first success this sends nothing.

        Raises:
            NotReady: The server cannot be reached, or it is not Triton.
        """
        if not self._is_triton:
            self._verify_identity(
                self._probe("ServerMetadata", service_pb2.ServerMetadataRequest(), deadline)
            )

    def server_live(self) -> bool:
        """Return True if the server reports that it is live."""
        self.check()
        return bool(self._probe("ServerLive", service_pb2.ServerLiveRequest()).live)

    def server_ready(self, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if all of the server's models are ready."""
        self.check(deadline)
        return bool(self._probe("ServerReady", service_pb2.ServerReadyRequest(), deadline).ready)

    def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if a model is ready; an unknown model is not."""
        self.check(deadline)
        return bool(self._probe("ModelReady", service_pb2.ModelReadyRequest(name=model), deadline).ready)

    def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata:
        """Fetch the metadata of a model's tensors."""
        self.check(deadline)
        message = service_pb2.ModelMetadataRequest(name=model)
        return messages.metadata(self._probe("ModelMetadata", message, deadline))

    def parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration."""
        self.check()
        return messages.parameters(self._probe("ModelConfig", service_pb2.ModelConfigRequest(name=model)))

    def models(self) -> tuple[str, ...]:
        """Fetch the names of the models that are ready."""
        self.check()
        return messages.ready_models(self._probe("ModelStatistics", service_pb2.ModelStatisticsRequest()))

    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors:
        """Call a model that sends one response."""
        request, remaining_s = messages.request(model, tensors, turn), deadline.remaining_s()
        headers = tuple(turn_headers(turn).items())
        with self._stub() as stub:
            try:
                if remaining_s is None:
                    return self._tensors(stub.ModelInfer(request, metadata=headers), model)
                # The call's own timeout exceeds the wait, so that the call ends by itself and is not cut.
                call = stub.ModelInfer.future(
                    request, timeout=remaining_s + DEADLINE_GRACE_S, metadata=headers
                )
                return self._tensors(call.result(remaining_s), model)
            except grpc.FutureTimeoutError:
                self._abandoned.add(call)
                call.add_done_callback(self._abandoned.discard)
                raise deadline.exceeded() from None
            except grpc.RpcError as error:
                raise self._inference_error(error, deadline) from None

    def stream(
        self,
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn = NO_SESSION,
        *,
        priority: int | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator ends the server's work."""
        request_id, remaining_s = new_request_id(), deadline.remaining_s()
        with self._stub() as stub:
            call = stub.ModelStreamInfer(
                iter([messages.request(model, tensors, turn, request_id, priority)]),
                timeout=None if remaining_s is None else remaining_s + CANCEL_GRACE_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            end = partial(self._end, stub, request_id)
            with stop_when_set(stop, partial(end, stop=True)):
                yield from stream_responses(
                    self._messages(call, deadline, model), end, call.cancel, deadline, remaining_s
                )

    def _messages(self, call: Any, deadline: Deadline, model: str) -> Iterator[Tensors | SlipwayError]:
        try:
            for message in call:
                yield self._parse_message(message, model)
        except grpc.RpcError as error:
            yield self._inference_error(error, deadline)

    @staticmethod
    def _end(stub: Any, request_id: str, *, stop: bool = False) -> bool | None:
        """Ask the server to end a request; return True if it knows it, None if it cannot be asked."""
        model, tensors = cancel_message(request_id, stop=stop)
        try:
            answer = stub.ModelInfer(messages.request(model, tensors), timeout=FIND_REQUEST_S)
        except (grpc.RpcError, ValueError):  # ValueError means that the connection was closed
            return None
        return _parse_found(answer)

    def _probe(self, method: str, message: Any, deadline: Deadline = UNLIMITED) -> Any:
        limit_s = deadline.within(self._connect_timeout_s)
        with self._stub() as stub:
            try:
                return getattr(stub, method)(message, timeout=limit_s)
            except grpc.RpcError as error:
                deadline.remaining_s()
                raise self._probe_error(error, limit_s) from None

    @contextlib.contextmanager
    def _stub(self) -> Iterator[Any]:
        """Provide the stub of a connection for one request."""
        connection, refused = self._pools.acquire(), False
        try:
            yield connection.stub
        except NotReady:
            refused = True
            raise
        finally:
            for retired in self._pools.release(connection, refused=refused):
                retired.channel.close()


class AsyncGrpcTransport(_Server):
    """Asyncio gRPC calls of one server, for the event loop in which the object was created."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates, grpc.aio)
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close the connection; open streams end as cancelled."""
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=DEADLINE_GRACE_S)
        for connection in self._pools.all():
            await connection.channel.close()

    async def check(self, deadline: Deadline = UNLIMITED) -> None:
        """Check that the server is Triton; see :meth:`GrpcTransport.check`."""
        if not self._is_triton:
            message = service_pb2.ServerMetadataRequest()
            self._verify_identity(await self._probe("ServerMetadata", message, deadline))

    async def server_live(self) -> bool:
        """Return True if the server reports that it is live."""
        await self.check()
        return bool((await self._probe("ServerLive", service_pb2.ServerLiveRequest())).live)

    async def server_ready(self, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if all of the server's models are ready."""
        await self.check(deadline)
        return bool((await self._probe("ServerReady", service_pb2.ServerReadyRequest(), deadline)).ready)

    async def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if a model is ready; an unknown model is not."""
        await self.check(deadline)
        message = service_pb2.ModelReadyRequest(name=model)
        return bool((await self._probe("ModelReady", message, deadline)).ready)

    async def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata:
        """Fetch the metadata of a model's tensors."""
        await self.check(deadline)
        message = service_pb2.ModelMetadataRequest(name=model)
        return messages.metadata(await self._probe("ModelMetadata", message, deadline))

    async def parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration."""
        await self.check()
        answer = await self._probe("ModelConfig", service_pb2.ModelConfigRequest(name=model))
        return messages.parameters(answer)

    async def models(self) -> tuple[str, ...]:
        """Fetch the names of the models that are ready."""
        await self.check()
        answer = await self._probe("ModelStatistics", service_pb2.ModelStatisticsRequest())
        return messages.ready_models(answer)

    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors:
        """Call a model that sends one response."""
        request, remaining_s = messages.request(model, tensors, turn), deadline.remaining_s()
        async with self._stub() as stub:
            call = stub.ModelInfer(
                request,
                timeout=None if remaining_s is None else remaining_s + DEADLINE_GRACE_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            try:
                return self._tensors(await asyncio.wait_for(self._shield(call), remaining_s), model)
            except TimeoutError:
                raise deadline.exceeded() from None
            except grpc.RpcError as error:
                raise self._inference_error(error, deadline) from None

    async def stream(
        self,
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn = NO_SESSION,
        *,
        priority: int | None = None,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[Tensors, None]:
        """Call a decoupled model; closing the generator or cancelling its task ends the server's work."""
        request_id, remaining_s = new_request_id(), deadline.remaining_s()
        async with self._stub() as stub:
            call = stub.ModelStreamInfer(
                [messages.request(model, tensors, turn, request_id, priority)],
                timeout=None if remaining_s is None else remaining_s + CANCEL_GRACE_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            end, messages_read = partial(self._end, stub, request_id), self._messages(call, deadline, model)
            responses = async_stream_responses(messages_read, end, deadline, remaining_s)
            with async_stop_when_set(stop, partial(end, stop=True)):
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        yield response

    async def _messages(
        self, call: Any, deadline: Deadline, model: str
    ) -> AsyncGenerator[Tensors | SlipwayError, None]:
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                yield self._parse_message(message, model)
        except grpc.RpcError as error:
            yield self._inference_error(error, deadline)
        finally:
            call.cancel()

    async def _end(self, stub: Any, request_id: str, *, stop: bool = False) -> bool | None:
        """Ask the server to end a request; see :meth:`GrpcTransport._end`."""
        model, tensors = cancel_message(request_id, stop=stop)
        try:
            answer = await self._shield(
                stub.ModelInfer(messages.request(model, tensors), timeout=FIND_REQUEST_S)
            )
        except (grpc.RpcError, grpc.aio.UsageError):
            return None
        return _parse_found(answer)

    def _shield(self, call: Any) -> asyncio.Future[Any]:
        """Return a future for a call that runs to its own end even if the waiting task is cancelled."""

        async def answer() -> Any:
            return await call

        def on_done(task: asyncio.Task[Any]) -> None:
            self._abandoned.discard(task)
            if not task.cancelled():
                task.exception()  # otherwise asyncio logs the exception as never retrieved

        task = asyncio.create_task(answer())
        self._abandoned.add(task)
        task.add_done_callback(on_done)
        return asyncio.shield(task)

    async def _probe(self, method: str, message: Any, deadline: Deadline = UNLIMITED) -> Any:
        limit_s = deadline.within(self._connect_timeout_s)
        async with self._stub() as stub:
            try:
                return await getattr(stub, method)(message, timeout=limit_s)
            except grpc.RpcError as error:
                deadline.remaining_s()
                raise self._probe_error(error, limit_s) from None

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        """Provide the stub of a connection for one request."""
        connection, refused = self._pools.acquire(), False
        try:
            yield connection.stub
        except NotReady:
            refused = True
            raise
        finally:
            for retired in self._pools.release(connection, refused=refused):
                await retired.channel.close()


@dataclass(frozen=True)
class _Connection:
    """Channel with its stub."""

    channel: Any
    stub: Any


def _connect(
    url: str,
    credentials: grpc.ChannelCredentials | None,
    options: tuple[tuple[str, int], ...],
    numbers: Iterator[int],
    protocol: Any,
) -> _Connection:
    """Return a new connection of `grpc` or `grpc.aio`; nothing is sent yet."""
    # A unique option keeps channels to one host from sharing a connection.
    options = (*options, ("slipway.connection", next(numbers)))
    if credentials is not None:
        channel = protocol.secure_channel(_host(url), credentials, options=options)
    else:
        channel = protocol.insecure_channel(_host(url), options=options)
    return _Connection(channel, service_pb2_grpc.GRPCInferenceServiceStub(channel))


def _credentials(url: str, certificates: Path | None) -> grpc.ChannelCredentials | None:
    """Return the TLS credentials of a connection, or None for one without TLS."""
    secured = url.startswith(_TLS)
    tls = load_tls(certificates, secured=secured)
    if tls is not None:
        return grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.ssl_channel_credentials() if secured else None


def _host(url: str) -> str:
    return url.removeprefix(_TLS).removeprefix("grpc://").rstrip("/")


def _parse_found(answer: Any) -> bool | None:
    """Return True if the server found the request to end, or None if its answer cannot be decoded."""
    try:
        return request_found(messages.tensors(answer))
    except (Malformed, *ERRORS):
        return None
