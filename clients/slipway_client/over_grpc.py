"""Triton's gRPC protocol: requests and responses as protobuf messages, a sync and an asyncio transport.

A generation is one ``ModelStreamInfer`` call with one request, half-closed at once, so the stream's end is
the end of the answer. Cancelling the call cancels the request inside Triton. Errors arrive in the stream as
text without a status, which is why ours carry their code in brackets (:mod:`slipway_serving.errors`). Triton
can answer a real status when asked by the header ``triton_grpc_error``, but release 2.51 sometimes crashes on
it when a request fails, so it is not asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

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
        credentials = _credentials(url, certificates)
        if credentials is not None:
            self._channel = grpc.secure_channel(_host(url), credentials, options=_OPTIONS)
        else:
            self._channel = grpc.insecure_channel(_host(url), options=_OPTIONS)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        """Close the connection; calls under way end as cancelled."""
        self._channel.close()

    def server_ready(self) -> bool:
        """Ask whether all of the server's models are ready."""
        return bool(self._ask(self._stub.ServerReady, service_pb2.ServerReadyRequest()).ready)

    def model_ready(self, model: str) -> bool:
        """Ask whether a model is ready; an unknown one is not."""
        return bool(self._ask(self._stub.ModelReady, service_pb2.ModelReadyRequest(name=model)).ready)

    def metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors."""
        return _metadata(self._ask(self._stub.ModelMetadata, service_pb2.ModelMetadataRequest(name=model)))

    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors:
        """Call a model that answers once."""
        request = _request(model, tensors, turn)
        try:
            response = self._stub.ModelInfer(
                request, timeout=deadline.remaining_s(), metadata=tuple(turn_headers(turn).items())
            )
        except grpc.RpcError as error:
            raise _call_error(self._url, error, deadline) from None
        return _tensors(response)

    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator cancels the call."""
        call = self._stub.ModelStreamInfer(
            iter([_request(model, tensors, turn)]),
            timeout=deadline.remaining_s(),
            metadata=tuple(turn_headers(turn).items()),
        )
        refusal: SlipwayError | None = None
        try:
            for message in call:
                # An error is the last message, but the server must end the call: cancelled in between,
                # Triton 2.51 keeps the request for ever and its model cannot be unloaded.
                refusal = refusal or _refusal(message)
                if refusal is None:
                    yield _tensors(message.infer_response)
            if refusal is not None:
                raise refusal
        except grpc.RpcError as error:
            raise _call_error(self._url, error, deadline) from None
        finally:
            call.cancel()

    def _ask(self, method: Any, message: Any) -> Any:
        try:
            return method(message, timeout=self._connect_timeout_s)
        except grpc.RpcError as error:
            raise _ask_error(self._url, error, self._connect_timeout_s) from None


class AsyncGrpcTransport:
    """The same calls for asyncio; belongs to the event loop in which it was made."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        credentials = _credentials(url, certificates)
        if credentials is not None:
            self._channel = grpc.aio.secure_channel(_host(url), credentials, options=_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(_host(url), options=_OPTIONS)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection; calls under way end as cancelled."""
        await self._channel.close()

    async def server_ready(self) -> bool:
        """Ask whether all of the server's models are ready."""
        return bool((await self._ask(self._stub.ServerReady, service_pb2.ServerReadyRequest())).ready)

    async def model_ready(self, model: str) -> bool:
        """Ask whether a model is ready; an unknown one is not."""
        return bool((await self._ask(self._stub.ModelReady, service_pb2.ModelReadyRequest(name=model))).ready)

    async def metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors."""
        message = service_pb2.ModelMetadataRequest(name=model)
        return _metadata(await self._ask(self._stub.ModelMetadata, message))

    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors:
        """Call a model that answers once."""
        request = _request(model, tensors, turn)
        try:
            response = await self._stub.ModelInfer(
                request, timeout=deadline.remaining_s(), metadata=tuple(turn_headers(turn).items())
            )
        except grpc.RpcError as error:
            raise _call_error(self._url, error, deadline) from None
        return _tensors(response)

    async def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> AsyncGenerator[Tensors, None]:
        """Call a decoupled model; closing the generator or cancelling its task cancels the call."""
        call = self._stub.ModelStreamInfer(
            [_request(model, tensors, turn)],
            timeout=deadline.remaining_s(),
            metadata=tuple(turn_headers(turn).items()),
        )
        refusal: SlipwayError | None = None
        try:
            async for message in call:
                refusal = refusal or _refusal(message)  # as in GrpcTransport.stream
                if refusal is None:
                    yield _tensors(message.infer_response)
            if refusal is not None:
                raise refusal
        except grpc.RpcError as error:
            raise _call_error(self._url, error, deadline) from None
        finally:
            call.cancel()

    async def _ask(self, method: Any, message: Any) -> Any:
        try:
            return await method(message, timeout=self._connect_timeout_s)
        except grpc.RpcError as error:
            raise _ask_error(self._url, error, self._connect_timeout_s) from None


def _credentials(url: str, certificates: Path | None) -> grpc.ChannelCredentials | None:
    """Return what a connection is secured with; None for one that is not."""
    secured = url.startswith(_TLS)
    tls = checked(certificates, secured=secured)
    if tls is not None:
        return grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.ssl_channel_credentials() if secured else None


def _host(url: str) -> str:
    return url.removeprefix(_TLS).removeprefix("grpc://").rstrip("/")


def _request(model: str, tensors: Tensors, turn: Turn) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
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
