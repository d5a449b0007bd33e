"""Blocking client: sends requests of any model family and returns events, results and sessions.

:class:`Client` combines a transport (gRPC or HTTP) with a :class:`Generation` or a :class:`SessionCodec`,
which decide everything except input and output. Closing or dropping an iterator, or leaving it by an
exception, cancels its request.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from numpy.typing import NDArray

from slipway_client import generation
from slipway_client.address import stated_protocol
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
from slipway_serving.protocol.turns import NO_SESSION, Session, Turn, Turns

END_S = 10.0
"""Time limit of the request that ends a session, in seconds. The server may not know the session."""


class Client:
    """Client of one Triton server.

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
        """Prepare a connection; nothing is sent yet.

        Args:
            url: Address of the server, as :attr:`url` has it.
            protocol: Protocol, "grpc", or "http" for networks that carry nothing else. Both stream and
                cancel. By default the scheme of `url` decides; without a scheme it is "grpc".
            retry: Policy for retrying refused requests.
            connect_timeout_s: Longest wait for a connection and for a readiness answer, in seconds.
            tls: Folder of certificates for a URL with TLS, see :mod:`slipway_client.tls`. By default the
                client trusts the system's authorities and shows no certificate of its own.

        Raises:
            InvalidRequest: The protocol is unknown or contradicts the URL, the URL or the time is invalid, or
                the certificates cannot be used.
        """
        self.url = url
        self._protocol: generation.Protocol = stated_protocol(url, protocol) or "grpc"
        durations.check("client", "connect_timeout_s", connect_timeout_s)
        self._retry = retry or RetryPolicy()
        self._transport = _transport(url, self._protocol, connect_timeout_s, tls)
        self._metadata: dict[str, ModelMetadata] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and cancel the generations in progress."""
        self._transport.close()

    def generate(
        self, request: Request, *, model: str | None = None, timeout_s: float | None = None
    ) -> Generator[Event | Result, None, None]:
        """Run a request of any model family.

        Args:
            request: Request to run; its class names the model.
            model: Name of the served model, if it differs from the request's.
            timeout_s: Time limit of the whole call, retries included, in seconds; by default the request's
                own. A server that does not report the timeout itself is asked to end the work 1 s later, and
                the client gives up 1 s after that.

        Returns:
            An iterator of the events as they arrive, for example one :class:`Progress` per denoising step.
            Parts of a video are joined and come last, as one :class:`Video` or :class:`Frames`. Closing the
            iterator cancels the work.

        Raises:
            InvalidRequest: The request breaks a rule, or the served model takes other tensors.
            NotReady: After all retries, no server answers, it has no such model, or the model is not loaded.
            Overloaded: After all retries, the server still has too much work.
            Cancelled: The work was cancelled elsewhere.
            DeadlineExceeded: The time limit was reached.
            Unrecoverable: The server failed, or the stream is incomplete.
        """
        return self._generate(Generation(request, model, timeout_s, self._protocol, self._retry))

    def stream(
        self, request: Request, *, model: str | None = None, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Run a request and yield every event as it arrives, parts of a video included.

        Arguments and errors are those of :meth:`generate`.
        """
        return self._events(Generation(request, model, timeout_s, self._protocol, self._retry))

    def session(
        self, request: Request, *, model: str | None = None, session_id: int | str | None = None
    ) -> ClientSession:
        """Open a session of a stateful model: ``with client.session(request) as session``.

        Nothing is sent before the first turn. However the block ends, the session ends on the server.

        Args:
            request: Request that opens the session; its `turn` is the class of each turn's content.
            model: Name of the served model, if it differs from the request's.
            session_id: Id that is unique among the model's sessions; by default a random one.

        Raises:
            InvalidRequest: The request does not open a session.
        """
        return ClientSession(self._turn, SessionCodec(request, model, self._protocol), Turns(session_id))

    def restore(
        self,
        request: type[Request],
        parts: Iterable[bytes],
        *,
        model: str | None = None,
        session_id: int | str | None = None,
    ) -> ClientSession:
        """Resume a session from a snapshot: ``with client.restore(UniversalRequest, parts) as session``.

        Args:
            request: Class of the request that opened the session.
            parts: Parts from :meth:`ClientSession.snapshot`; they are sent one by one before this returns.
            model: Name of the served model, if it differs from the request's.
            session_id: Id of the new session, as in :meth:`session`.

        Raises:
            InvalidRequest: The parts are incomplete or belong to another model.
            SlipwayError: The call failed, as in :meth:`generate`; the session is then removed.
        """
        codec = SessionCodec(request, model, self._protocol)
        session = ClientSession(self._turn, codec, Turns(session_id))
        restored = None
        try:
            for part in parts:
                restored = session.step_single(Restore(part), Restored)
            check_complete(codec.model, restored)
        except BaseException:
            session.close()
            raise
        return session

    def infer(
        self,
        model: str,
        tensors: Mapping[str, NDArray[Any]],
        timeout_s: float | None = None,
        turn: Turn = NO_SESSION,
    ) -> Tensors:
        """Call a model that sends one response.

        Args:
            model: Name of the served model.
            tensors: Arrays by input name, with the batch dimension if the model batches; text is bytes.
            timeout_s: Time limit in seconds.
            turn: Place of the request in a session, for a model that keeps state between requests. A refused
                turn is not retried, since the server may have processed it.

        Returns:
            The outputs by name.

        Raises:
            SlipwayError: The call failed, as in :meth:`generate`.
        """
        deadline = Deadline(timeout_s, model)
        attempts = Attempts(self._retry, deadline)
        while True:
            try:
                check_tensors(self._ready_metadata(model, deadline), tensors)
                return self._transport.infer(model, tensors, deadline, turn)
            except SlipwayError as error:
                if turn.id:
                    raise
                self._pause(model, attempts.wait_s(error))

    def is_ready(self, model: str | None = None) -> bool:
        """Return True if the server, or one of its models, is ready. Does not retry."""
        try:
            self.check_ready(model)
        except NotReady:
            return False
        return True

    def check_ready(self, model: str | None = None) -> None:
        """Check that the server, or one of its models, is ready. Does not retry.

        Args:
            model: Name of a served model; None checks the server with all of its models.

        Raises:
            NotReady: The error names the cause: nothing listens, the host is unknown, the server is not
                Triton, TLS fails, the server has no such model, or a model is not loaded.
        """
        if model is None:
            if not self._transport.server_ready():
                raise generation.server_not_ready_error(self.url)
            return
        self._transport.metadata(model)
        if not self._transport.model_ready(model):
            raise generation.not_ready_error(model, self.url)

    def is_live(self) -> bool:
        """Return True if the server answers, ready or not. Does not retry."""
        try:
            self.check_live()
        except NotReady:
            return False
        return True

    def check_live(self) -> None:
        """Check that the server answers, ready or not. Does not retry.

        Raises:
            NotReady: The server does not answer; the error names the cause, as in :meth:`check_ready`.
        """
        if not self._transport.server_live():
            raise generation.not_live_error(self.url)

    def model_metadata(self, model: str) -> ModelMetadata:
        """Fetch the metadata of a model's tensors. Does not retry.

        Raises:
            NotReady: No server answers, or it has no such model.
        """
        return self._transport.metadata(model)

    def model_parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration, by name. Does not retry.

        Raises:
            NotReady: No server answers, or it has no such model.
        """
        return self._transport.parameters(model)

    def _generate(self, job: Generation) -> Generator[Event | Result, None, None]:
        """Yield events as they arrive, then the joined results."""
        assembler = Assembler(job.request, job.model)
        with closing(self._events(job)) as events:
            for event in events:
                with decoding(self.url, job.model):
                    complete = assembler.add(event)
                if complete is not None:
                    yield complete
        with decoding(self.url, job.model):
            results = assembler.results()
        yield from results

    def _events(self, job: Generation) -> Generator[Event, None, None]:
        """Yield the events of a generation, with another attempt after each refusal."""
        while True:
            try:
                job.check(self._ready_metadata(job.model, job.deadline))
                responses = self._responses(job.request, job.model, job.tensors, job.deadline, NO_SESSION)
                with closing(responses):
                    for response in responses:
                        with decoding(self.url, job.model):
                            event = job.event(response)
                        yield event
            except SlipwayError as error:
                self._pause(job.model, job.wait_s(error))
            else:
                return

    def _turn(
        self, codec: SessionCodec, content: Request | None, turn: Turn, timeout_s: float | None
    ) -> Generator[Event, None, None]:
        """Send one turn of a session and yield its events; a turn is never retried."""
        deadline = Deadline(timeout_s, codec.model)
        tensors = codec.tensors(content, turn)
        check_tensors(self._ready_metadata(codec.model, deadline), tensors)
        with closing(self._responses(codec.kind, codec.model, tensors, deadline, turn)) as responses:
            for response in responses:
                if content is not None:
                    with decoding(self.url, codec.model):
                        event = codec.event(response)
                    yield event

    def _responses(
        self,
        request: Request | type[Request],
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn,
    ) -> Generator[Tensors, None, None]:
        """Yield the responses of a model that streams, or the one response of any other model."""
        if request.streams:
            yield from self._transport.stream(model, tensors, deadline, turn)
        else:
            yield self._transport.infer(model, tensors, deadline, turn)

    def _ready_metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        """Return a model's metadata; the first call also checks that server and model are ready."""
        if model not in self._metadata:
            metadata = self._transport.metadata(model, deadline)
            if not self._transport.model_ready(model, deadline):
                raise generation.not_ready_error(model, self.url)
            if not self._transport.server_ready(deadline):
                raise generation.not_ready_error(f"{model}'s server", self.url)
            self._metadata[model] = metadata
        return self._metadata[model]

    def _pause(self, model: str, wait_s: float) -> None:
        self._metadata.pop(model, None)
        time.sleep(wait_s)


class ClientSession:
    """Session of a stateful model, see :meth:`Client.session`.

    Args:
        send: Callback that sends one turn, within a time limit in seconds, and yields its events.
        codec: Codec that encodes the turns and decodes the answers.
        turns: Turn counter of the session.
    """

    def __init__(
        self,
        send: Callable[[SessionCodec, Request | None, Turn, float | None], Generator[Event, None, None]],
        codec: SessionCodec,
        turns: Turns,
    ) -> None:
        self._timeout_s: float | None = None
        self._session: Session[Request, Event] = Session(
            lambda content, turn: send(codec, content, turn, self._timeout_s if content else END_S), turns
        )

    @property
    def id(self) -> int | str:
        """Return the id by which the server knows the session."""
        return self._session.id

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session on the server if it is open."""
        self._session.close()

    def step(
        self, turn: Request, *, last: bool = False, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Send one turn and yield its events as they arrive.

        The turn is sent when the first event is requested. Leaving the iterator cancels the turn; after that
        the session can only be ended.

        Args:
            turn: Content of the turn, of the class that the opening request names.
            last: True if the session ends with this turn.
            timeout_s: Time limit of the turn in seconds.

        Raises:
            SlipwayError: The turn failed, as in :meth:`Client.generate`; a turn is never retried.
        """
        self._timeout_s = timeout_s
        yield from self._session.step(turn, last=last)

    def snapshot(self) -> Generator[bytes, None, None]:
        """Yield the session's state in parts, from which :meth:`Client.restore` resumes it elsewhere.

        The session stays open. No turn may be sent between two parts.

        Raises:
            SlipwayError: A turn failed, as in :meth:`step`.
        """
        for number in itertools.count():
            part = self.step_single(Snapshot(number), SnapshotPart)
            yield part.data
            if number + 1 >= part.parts:
                return

    def step_single(self, turn: Request, kind: type[E]) -> E:
        """Send one turn and return its one event.

        Raises:
            Unrecoverable: The answer is not exactly one event of that class.
            SlipwayError: The turn failed, as in :meth:`step`.
        """
        return single_event(list(self.step(turn)), kind)


class _Transport(Protocol):
    """Calls that both the gRPC and the HTTP transport offer."""

    def close(self) -> None: ...
    def server_live(self) -> bool: ...
    def server_ready(self, deadline: Deadline = UNLIMITED) -> bool: ...
    def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool: ...
    def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata: ...
    def parameters(self, model: str) -> dict[str, str]: ...
    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors: ...
    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Generator[Tensors, None, None]: ...


def _transport(url: str, protocol: str, connect_timeout_s: float, tls: Path | None) -> _Transport:
    # Imported here so that a command loads only the protocol that it uses, or none.
    if protocol == "grpc":
        from slipway_client.grpc.transport import GrpcTransport

        return GrpcTransport(url, connect_timeout_s, tls)
    from slipway_client.http.transport import HttpTransport

    return HttpTransport(url, connect_timeout_s, tls)
