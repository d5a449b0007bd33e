"""Triton's gRPC protocol: requests and responses as protobuf messages, a sync and an asyncio transport.

A generation is one ``ModelStreamInfer`` call with one request, half-closed at once, so the stream's end is
the end of the answer. A call that is left, or whose time is over, is ended by a message
(:mod:`slipway_client.leaving`), since Triton can crash when calls are cut; a cut is what is left where that
does not help. Errors arrive in the stream as
text without a status, which is why ours carry their code in brackets (:mod:`slipway_serving.errors`). Triton
can answer a real status when asked by the header ``triton_grpc_error``, but release 2.51 sometimes crashes on
it when a request fails, so it is not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slipway_client.connections import Pools
from slipway_client.leaving import (
    CUT_S,
    KNOWN_S,
    LATE_S,
    answers,
    async_answers,
    ending,
    made_id,
    was_found,
)
from slipway_client.metadata import ModelMetadata, TensorMetadata
from slipway_client.retry import Deadline, UnknownModel
from slipway_client.tensors import (
    Tensors,
    datatype_of,
    from_bytes,
    to_bytes,
    turn_headers,
    turn_parameters,
)
from slipway_client.tls import checked
from slipway_serving.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    SlipwayError,
    from_wire,
)
from slipway_serving.turns import NO_SESSION, Turn

_INT32_MAX = 2**31 - 1
_OPTIONS = (
    ("grpc.max_send_message_length", _INT32_MAX),
    ("grpc.max_receive_message_length", _INT32_MAX),
    # A host that died in silence is noticed by a ping. Triton closes connections that ping more often than
    # every 300 s while no data flows, as in a long denoising step.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Clients of one process would share a connection, and so be one user to whatever balances connections.
    ("grpc.use_local_subchannel_pool", 1),
)
_TLS = "grpcs://"
# What gRPC says when something else than a gRPC server answers.
_OTHER_SERVER = "http2 header with status"
# What Triton and gRPC themselves say, where no status comes with it or it says too little.
_TRITON_TEXTS: tuple[tuple[str, type[SlipwayError]], ...] = (
    ("has no available versions", NotReady),
    (UnknownModel.said, UnknownModel),
    ("larger than max", InvalidRequest),
    ("unexpected inference input", InvalidRequest),
    ("unexpected shape for input", InvalidRequest),
    ("input byte size mismatch", InvalidRequest),
    ("inference inputs for model", InvalidRequest),
)


class GrpcTransport:
    """Blocking calls of one server; may be used from several threads."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        made = partial(_connected, url, _credentials(url, certificates), count(), grpc)
        self._pools: Pools[_Connection] = Pools(made)
        self._left: set[Any] = set()

    def close(self) -> None:
        """Close the connection; streams under way end as cancelled."""
        for call in tuple(self._left):
            with contextlib.suppress(grpc.RpcError):
                call.result()
        for connection in self._pools.all():
            connection.channel.close()

    def server_live(self) -> bool:
        """Ask whether the server answers at all."""
        return bool(self._ask("ServerLive", service_pb2.ServerLiveRequest()).live)

    def server_ready(self) -> bool:
        """Ask whether all of the server's models are ready."""
        return bool(self._ask("ServerReady", service_pb2.ServerReadyRequest()).ready)

    def model_ready(self, model: str) -> bool:
        """Ask whether a model is ready; an unknown one is not."""
        return bool(self._ask("ModelReady", service_pb2.ModelReadyRequest(name=model)).ready)

    def metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors."""
        return _metadata(self._ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=model)))

    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors:
        """Call a model that answers once."""
        request, left_s = _request(model, tensors, turn), deadline.remaining_s()
        headers = tuple(turn_headers(turn).items())
        with self._stub() as stub:
            try:
                if left_s is None:
                    return _tensors(stub.ModelInfer(request, metadata=headers))
                # The call itself ends later than we wait for it: one that ends by itself is none that is cut.
                call = stub.ModelInfer.future(request, timeout=left_s + LATE_S, metadata=headers)
                return _tensors(call.result(left_s))
            except grpc.FutureTimeoutError:
                self._left.add(call)
                call.add_done_callback(self._left.discard)
                raise deadline.exceeded() from None
            except grpc.RpcError as error:
                raise _call_error(self._url, error, deadline) from None

    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator ends the work."""
        request_id, left_s = made_id(), deadline.remaining_s()
        with self._stub() as stub:
            call = stub.ModelStreamInfer(
                iter([_request(model, tensors, turn, request_id)]),
                timeout=None if left_s is None else left_s + CUT_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            end = partial(self._end, stub, request_id)
            yield from answers(self._messages(call, deadline), end, call.cancel, deadline, left_s)

    def _messages(self, call: Any, deadline: Deadline) -> Iterator[Tensors | SlipwayError]:
        try:
            for message in call:
                yield _refusal(message) or _tensors(message.infer_response)
        except grpc.RpcError as error:
            yield _call_error(self._url, error, deadline)

    @staticmethod
    def _end(stub: Any, request_id: str) -> bool | None:
        """Ask the server to end a request; tell whether it knows it, None where it cannot be asked."""
        model, tensors = ending(request_id)
        try:
            return was_found(_tensors(stub.ModelInfer(_request(model, tensors), timeout=KNOWN_S)))
        except (grpc.RpcError, ValueError):  # the latter when the connection was closed
            return None

    def _ask(self, method: str, message: Any) -> Any:
        with self._stub() as stub:
            try:
                return getattr(stub, method)(message, timeout=self._connect_timeout_s)
            except grpc.RpcError as error:
                raise _ask_error(self._url, error, self._connect_timeout_s) from None

    @contextlib.contextmanager
    def _stub(self) -> Iterator[Any]:
        """Lend a connection for one request."""
        connection, refused = self._pools.take(), False
        try:
            yield connection.stub
        except NotReady:
            refused = True
            raise
        finally:
            for over in self._pools.give_back(connection, refused=refused):
                over.channel.close()


class AsyncGrpcTransport:
    """The same calls for asyncio; belongs to the event loop in which it was made."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        made = partial(_connected, url, _credentials(url, certificates), count(), grpc.aio)
        self._pools: Pools[_Connection] = Pools(made)
        self._left: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close the connection; streams under way end as cancelled."""
        if self._left:
            await asyncio.wait(self._left, timeout=LATE_S)
        for connection in self._pools.all():
            await connection.channel.close()

    async def server_live(self) -> bool:
        """Ask whether the server answers at all."""
        return bool((await self._ask("ServerLive", service_pb2.ServerLiveRequest())).live)

    async def server_ready(self) -> bool:
        """Ask whether all of the server's models are ready."""
        return bool((await self._ask("ServerReady", service_pb2.ServerReadyRequest())).ready)

    async def model_ready(self, model: str) -> bool:
        """Ask whether a model is ready; an unknown one is not."""
        return bool((await self._ask("ModelReady", service_pb2.ModelReadyRequest(name=model))).ready)

    async def metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors."""
        message = service_pb2.ModelMetadataRequest(name=model)
        return _metadata(await self._ask("ModelMetadata", message))

    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors:
        """Call a model that answers once."""
        request, left_s = _request(model, tensors, turn), deadline.remaining_s()
        async with self._stub() as stub:
            call = stub.ModelInfer(
                request,
                timeout=None if left_s is None else left_s + LATE_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            try:
                return _tensors(await asyncio.wait_for(self._shielded(call), left_s))
            except TimeoutError:
                raise deadline.exceeded() from None
            except grpc.RpcError as error:
                raise _call_error(self._url, error, deadline) from None

    async def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> AsyncGenerator[Tensors, None]:
        """Call a decoupled model; closing the generator or cancelling its task ends the work."""
        request_id, left_s = made_id(), deadline.remaining_s()
        async with self._stub() as stub:
            call = stub.ModelStreamInfer(
                [_request(model, tensors, turn, request_id)],
                timeout=None if left_s is None else left_s + CUT_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            end, messages = partial(self._end, stub, request_id), self._messages(call, deadline)
            async with contextlib.aclosing(async_answers(messages, end, deadline, left_s)) as answered:
                async for found in answered:
                    yield found

    async def _messages(self, call: Any, deadline: Deadline) -> AsyncGenerator[Tensors | SlipwayError, None]:
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                yield _refusal(message) or _tensors(message.infer_response)
        except grpc.RpcError as error:
            yield _call_error(self._url, error, deadline)
        finally:
            call.cancel()

    async def _end(self, stub: Any, request_id: str) -> bool | None:
        """As :meth:`GrpcTransport._end`."""
        model, tensors = ending(request_id)
        try:
            answer = await self._shielded(stub.ModelInfer(_request(model, tensors), timeout=KNOWN_S))
        except (grpc.RpcError, grpc.aio.UsageError):
            return None
        return was_found(_tensors(answer))

    def _shielded(self, call: Any) -> asyncio.Future[Any]:
        """Return the answer of a call that goes on where nobody waits for it any more, and ends by itself."""

        async def answer() -> Any:
            return await call

        def ended(task: asyncio.Task[Any]) -> None:
            self._left.discard(task)
            if not task.cancelled():
                task.exception()  # else it would be told as one that nobody has seen

        task = asyncio.create_task(answer())
        self._left.add(task)
        task.add_done_callback(ended)
        return asyncio.shield(task)

    async def _ask(self, method: str, message: Any) -> Any:
        async with self._stub() as stub:
            try:
                return await getattr(stub, method)(message, timeout=self._connect_timeout_s)
            except grpc.RpcError as error:
                raise _ask_error(self._url, error, self._connect_timeout_s) from None

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        """Lend a connection for one request."""
        connection, refused = self._pools.take(), False
        try:
            yield connection.stub
        except NotReady:
            refused = True
            raise
        finally:
            for over in self._pools.give_back(connection, refused=refused):
                await over.channel.close()


@dataclass(frozen=True)
class _Connection:
    """A channel and the calls over it."""

    channel: Any
    stub: Any


def _connected(
    url: str, credentials: grpc.ChannelCredentials | None, numbers: Iterator[int], protocol: Any
) -> _Connection:
    """Return a new connection of `grpc` or `grpc.aio`; nothing is sent yet."""
    # Channels of equal options to one host would share what is connected.
    options = (*_OPTIONS, ("slipway.connection", next(numbers)))
    if credentials is not None:
        channel = protocol.secure_channel(_host(url), credentials, options=options)
    else:
        channel = protocol.insecure_channel(_host(url), options=options)
    return _Connection(channel, service_pb2_grpc.GRPCInferenceServiceStub(channel))


def _credentials(url: str, certificates: Path | None) -> grpc.ChannelCredentials | None:
    """Return what a connection is secured with; None for one that is not."""
    secured = url.startswith(_TLS)
    tls = checked(certificates, secured=secured)
    if tls is not None:
        return grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.ssl_channel_credentials() if secured else None


def _host(url: str) -> str:
    return url.removeprefix(_TLS).removeprefix("grpc://").rstrip("/")


def _request(model: str, tensors: Tensors, turn: Turn = NO_SESSION, request_id: str = "") -> Any:
    message = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, value in turn_parameters(turn).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    for name, array in tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(to_bytes(array))
    return message


def _tensors(response: Any) -> Tensors:
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: from_bytes(raw, output.datatype, output.shape) for output, raw in pairs}


def _refusal(message: Any) -> SlipwayError | None:
    return _said(message.error_message) if message.error_message else None


def _metadata(message: Any) -> ModelMetadata:
    inputs, outputs = (
        tuple(TensorMetadata(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in tensors)
        for tensors in (message.inputs, message.outputs)
    )
    return ModelMetadata(message.name, tuple(message.versions), inputs, outputs)


def _said(text: str, status: str | None = None) -> SlipwayError:
    """Return the error that a server's text means, with the call's status where there is one."""
    error = from_wire(text, status)
    if error.args[0] == text.strip():  # no code of ours in it
        for part, kind in _TRITON_TEXTS:
            if part in text:
                return kind(text)
    return error


def _call_error(url: str, error: grpc.RpcError, deadline: Deadline) -> SlipwayError:
    mapped = _error(url, error)
    local = isinstance(mapped, DeadlineExceeded) and mapped.args[0] == "Deadline Exceeded"
    return deadline.exceeded() if local else mapped


def _ask_error(url: str, error: grpc.RpcError, limit_s: float) -> SlipwayError:
    mapped = _error(url, error)
    if isinstance(mapped, DeadlineExceeded):
        return NotReady(f"{url}: no answer within {limit_s:g} s; try another url, or see the server's log")
    return mapped


def _error(url: str, error: Any) -> SlipwayError:
    status, text = error.code().name, error.details() or ""
    mapped = _said(text, status)
    if isinstance(mapped, UnknownModel):
        return UnknownModel(f"{url}: {text}")
    if _OTHER_SERVER in text or (type(mapped) is NotReady and mapped.args[0] == text):
        return NotReady(f"{url}: unavailable over gRPC: {text}; try another url, or `slipway serve` there")
    return mapped
