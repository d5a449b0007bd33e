"""The blocking client: a request in, progress and a result out.

:class:`Client` puts a transport (gRPC or HTTP) under a :class:`Generation`, which decides everything that is
not input or output. An iterator that is closed, dropped, or left by an exception cancels its request.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import closing
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


class Client:
    """A connection to one Triton server.

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
        """Prepare a connection; nothing is sent yet.

        Args:
            url: of the server.
            protocol: "grpc", or "http" for networks that know nothing else. Either streams and cancels.
            retry: how refused requests are tried again.
            connect_timeout_s: longest wait for a connection and for an answer about readiness, seconds.

        Raises:
            InvalidRequest: there is no such protocol.
        """
        self.url = url
        self._protocol = protocol
        self._retry = retry or RetryPolicy()
        self._transport = _transport(url, protocol, connect_timeout_s)
        self._known: dict[str, ModelMetadata] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; generations under way are cancelled."""
        self._transport.close()

    def generate(
        self, request: TextToVideoRequest, *, model: str = "wan_t2v", timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Generate a video.

        Args:
            request: what to generate.
            model: the served model.
            timeout_s: time limit of the whole, retries included, seconds; by default the request's own. A
                server that does not say so itself is given up 1 s later.

        Returns:
            An iterator of one :class:`Progress` per denoising step, then one :class:`Video`, or one
            :class:`Frames` for ``output="frames"``. Closing it cancels the generation.

        Raises:
            InvalidRequest: the request breaks a rule, or the served model takes other tensors.
            NotReady: no server, or no such model, or it has not loaded; after the retries.
            Overloaded: the server has enough work; after the retries.
            Cancelled: the generation was cancelled elsewhere.
            DeadlineExceeded: the time limit was reached.
            Unrecoverable: the server failed, or the stream is incomplete.
        """
        return self._events(Generation(request, model, timeout_s, self._protocol, self._retry))

    def infer(
        self,
        model: str,
        tensors: Mapping[str, NDArray[Any]],
        timeout_s: float | None = None,
        turn: Turn | None = None,
    ) -> Tensors:
        """Call any model that answers once.

        Args:
            model: the served model.
            tensors: by input name, with the batch dimension if the model batches; text as bytes objects.
            timeout_s: time limit, seconds.
            turn: the request's place in a sequence, for a model that keeps state between requests. A refused
                one is not tried again, since the server may have taken it in.

        Returns:
            The outputs by name.

        Raises:
            SlipwayError: as :meth:`generate`.
        """
        deadline = Deadline(timeout_s, model)
        attempts = Attempts(self._retry, deadline)
        while True:
            try:
                check_tensors(self._ready_metadata(model), tensors)
                return self._transport.infer(model, tensors, deadline, turn)
            except SlipwayError as error:
                if turn is not None:
                    raise
                self._pause(model, attempts.wait_s(error))

    def is_ready(self, model: str | None = None) -> bool:
        """Tell whether the server answers and is ready, or one of its models is; without retries."""
        try:
            return self._transport.server_ready() if model is None else self._transport.model_ready(model)
        except NotReady:
            return False

    def model_metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors; without retries.

        Raises:
            NotReady: no server, or no such model.
        """
        return self._transport.metadata(model)

    def _events(self, job: Generation) -> Generator[Event, None, None]:
        while True:
            try:
                job.check(self._ready_metadata(job.model))
                with closing(self._transport.stream(job.model, job.tensors, job.deadline)) as responses:
                    for response in responses:
                        if (progress := job.add(response)) is not None:
                            yield progress
                yield job.result()
            except SlipwayError as error:
                self._pause(job.model, job.wait_s(error))
            else:
                return

    def _ready_metadata(self, model: str) -> ModelMetadata:
        """Return a model's metadata; the first time after asking whether server and model are ready."""
        if model not in self._known:
            metadata = self._transport.metadata(model)
            if not self._transport.model_ready(model):
                raise generation.not_ready(model, self.url)
            if not self._transport.server_ready():
                raise generation.not_ready(f"{model}'s server", self.url)
            self._known[model] = metadata
        return self._known[model]

    def _pause(self, model: str, wait_s: float) -> None:
        self._known.pop(model, None)
        time.sleep(wait_s)


class _Transport(Protocol):
    """What either protocol can do."""

    def close(self) -> None: ...
    def server_ready(self) -> bool: ...
    def model_ready(self, model: str) -> bool: ...
    def metadata(self, model: str) -> ModelMetadata: ...
    def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn | None = None
    ) -> Tensors: ...
    def stream(self, model: str, tensors: Tensors, deadline: Deadline) -> Generator[Tensors, None, None]: ...


def _transport(url: str, protocol: str, connect_timeout_s: float) -> _Transport:
    # Imported here: a command that talks to no server, or over one protocol, loads no other.
    if protocol == "grpc":
        from slipway_client.over_grpc import GrpcTransport

        return GrpcTransport(url, connect_timeout_s)
    if protocol == "http":
        from slipway_client.over_http import HttpTransport

        return HttpTransport(url, connect_timeout_s)
    raise InvalidRequest(f"client: protocol must be grpc or http, got {protocol!r}")
