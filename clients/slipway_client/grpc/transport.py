"""Blocking transport for Triton's gRPC protocol: requests and responses as protobuf messages.

A generation is one ``ModelStreamInfer`` call with one request, half-closed at once, so the end of the stream
is the end of the answer. A call that the caller abandons, or whose time is over, is ended by a message
(:mod:`slipway_client.cancellation`), since Triton can crash when calls are cut; cutting is the last resort.
Errors arrive in the stream as text without a status, so Slipway's errors carry their code in brackets
(:mod:`slipway_serving.protocol.errors`). With the header ``triton_grpc_error`` Triton would send a real
status, but release 2.51 sometimes crashes on it when a request fails, so the header is not sent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from slipway_client.cancellation import (
    CANCEL_GRACE_S,
    DEADLINE_GRACE_S,
    FIND_REQUEST_S,
    cancel_message,
    new_request_id,
    stream_responses,
)
from slipway_client.grpc import messages
from slipway_client.grpc.endpoint import GrpcEndpoint, parse_found
from slipway_client.metadata import ModelMetadata
from slipway_client.retry import UNLIMITED, Deadline
from slipway_client.stop_requests import stop_when_set
from slipway_client.tensors import Tensors, turn_headers
from slipway_serving.protocol.errors import NotReady, SlipwayError
from slipway_serving.protocol.turns import NO_SESSION, Turn


class GrpcTransport(GrpcEndpoint):
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
        return parse_found(answer)

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
