"""Blocking client: sends requests of any model family and returns events, results and sessions.

:class:`Client` combines a transport (gRPC or HTTP) with a :class:`Generation` or a :class:`SessionCodec`,
which decide everything except input and output. Closing or dropping an iterator, or leaving it by an
exception, cancels its request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
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
from slipway_client.sessions import ClientSession
from slipway_client.snapshots import check_complete
from slipway_client.tensors import Tensors
from slipway_client.transports import Transport, make_transport
from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import NotReady, SlipwayError
from slipway_serving.protocol.events import Event, FramesPart, VideoPart
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.snapshots.requests import Restore, Restored
from slipway_serving.protocol.turns import NO_SESSION, Turn, Turns


class Client:
    """Client of a Triton server, or of several that serve the same models.

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
        """Prepare a connection; nothing is sent yet.

        Args:
            url: Address of the server, as :attr:`url` has it, or several addresses of servers with the same
                models: separated by commas, or as a sequence. A host name other than "localhost" may stand
                for several servers too, such as that of a Kubernetes service.
            protocol: Protocol, "grpc", or "http" for networks that carry nothing else. Both stream and
                cancel. By default the scheme of `url` decides; without a scheme it is "grpc".
            retry: Policy for retrying refused requests.
            connect_timeout_s: Longest wait for a connection and for a readiness answer, in seconds.
            tls: Folder of certificates for a URL with TLS, see :mod:`slipway_client.tls`. By default the
                client trusts the system's authorities and shows no certificate of its own.

        Raises:
            InvalidRequest: The protocol is unknown or contradicts the URL, the URL or the time is invalid, or
                the certificates cannot be used; or the addresses are of two protocols.
        """
        self._servers = ServerList.of(url, protocol)
        self.url = self._servers.addresses[0]
        durations.check("client", "connect_timeout_s", connect_timeout_s)
        self._retry = retry or RetryPolicy()
        self._transports = {
            each: make_transport(each, self._servers.protocol, connect_timeout_s, tls)
            for each in self._servers.addresses
        }
        self._metadata: dict[tuple[str, str], ModelMetadata] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and cancel the generations in progress."""
        for transport in self._transports.values():
            transport.close()

    def generate(
        self,
        request: Request,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
        traceparent: str = "",
        on_part: Callable[[FramesPart | VideoPart], None] | None = None,
    ) -> Generator[Output, None, None]:
        """Run a request of any model family.

        Args:
            request: Request to run; its class names the model.
            model: Name of the served model, if it differs from the request's.
            timeout_s: Time limit of the whole call, retries included, in seconds; by default the request's
                own. A server that does not report the timeout itself is asked to end the work 1 s later, and
                the client gives up 1 s after that.
            stop: Event that stops the request while it runs, once it is set: the server finishes the step
                under way and sends its state, which comes as :class:`Stopped`.
            traceparent: Trace that the server's trace of the request continues, as a header of W3C Trace
                Context; "" means none.
            on_part: Callback that receives each part of a result or a draft as it arrives, for a view of a
                video that grows.

        Returns:
            An iterator of the events as they arrive, for example one :class:`Progress` per denoising step.
            Parts of a video are joined and come last, as one :class:`Video` or :class:`Frames`. Closing the
            iterator cancels the work. A video that stops ends with :class:`Stopped`, with its state and
            without a result.

            The client continues a video by itself on the next address, or on a new connection to the same
            service name, when the server shuts down; and also when the server fails, from the last
            :class:`Checkpoint`, if the request has `checkpoint_every_steps`. It yields :class:`Moved` then.
            If no other server takes over a video within the retry policy, the last event is
            :class:`Stopped` with its state; an error other than a refusal is raised after it.

        Raises:
            InvalidRequest: The request breaks a rule, or the served model takes other tensors.
            NotReady: After all retries, no server answers, it has no such model, or the model is not loaded.
            Overloaded: After all retries, the server still has too much work.
            Cancelled: The work was cancelled elsewhere.
            DeadlineExceeded: The time limit was reached.
            Unrecoverable: The server failed, or the stream is incomplete.
        """
        job = Generation(request, model, timeout_s, self._servers.protocol, self._retry, stop, traceparent)
        return self._generate(ContinuedGeneration(job, Route(self._servers, self.url), on_part), stop)

    def stream(
        self,
        request: Request,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
        traceparent: str = "",
    ) -> Generator[Event, None, None]:
        """Run a request and yield every event as it arrives, parts of a video and of states included.

        Arguments and errors are those of :meth:`generate`. A stopped video is not continued. Parts of a state
        are the server's, and parts of the result that came before the state of a request do not come again.
        """
        job = Generation(request, model, timeout_s, self._servers.protocol, self._retry, stop, traceparent)
        return self._events(job, Route(self._servers, self.url), stop)

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
        codec = SessionCodec(request, model, self._servers.protocol)
        return ClientSession(partial(self._turn, self.url), codec, Turns(session_id))

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
        codec = SessionCodec(request, model, self._servers.protocol)
        session = ClientSession(partial(self._turn, self.url), codec, Turns(session_id))
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
        route = Route(self._servers, self.url)
        while True:
            try:
                check_tensors(self._ready_metadata(route.url, model, deadline), tensors)
                return self._transport_to(route.url).infer(model, tensors, deadline, turn)
            except SlipwayError as error:
                if turn.id:
                    raise
                wait_s = attempts.wait_s(error)
                route.advance()
                self._pause(model, route, wait_s)

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

    def models(self) -> tuple[str, ...]:
        """Fetch the names of the models that are ready, sorted. Does not retry.

        They come from the server's statistics, since `slipway serve` shows the index of its repository only
        to holders of the control token.

        Raises:
            NotReady: No server answers.
        """
        return self._transport.models()

    def _generate(
        self, run: ContinuedGeneration, stop: threading.Event | None
    ) -> Generator[Output, None, None]:
        """Yield events as they arrive, then the joined results; continue elsewhere where that is possible."""
        job, route = run.job, run.route
        while not run.is_over:
            try:
                with closing(self._attempt(job, route, stop)) as events:
                    for event in events:
                        with decoding(route.url, job.model):
                            outputs = run.add(event)
                        yield from outputs
                with decoding(route.url, job.model):
                    outputs = run.end()
            except SlipwayError as error:
                outputs = run.fail(error)
            yield from outputs
            if run.error is not None:
                raise run.error
            if not run.is_over:
                if run.left_url is not None:
                    self._transport_to(run.left_url).retire()
                self._pause(job.model, route, run.wait_s, stop)

    def _events(
        self, job: Generation, route: Route, stop: threading.Event | None
    ) -> Generator[Event, None, None]:
        """Yield the events of a generation, with another attempt after each refusal."""
        while True:
            try:
                with closing(self._attempt(job, route, stop)) as events:
                    yield from events
            except SlipwayError as error:
                wait_s = job.wait_s(error)
                route.advance()
                self._pause(job.model, route, wait_s, stop)
            else:
                return

    def _attempt(
        self, job: Generation, route: Route, stop: threading.Event | None
    ) -> Generator[Event, None, None]:
        """Send a request once and yield its events."""
        url = route.url
        job.check(self._ready_metadata(url, job.model, job.deadline))
        responses = self._responses(url, job.request, job.model, job.tensors, job.deadline, job.turn, stop)
        with closing(responses):
            for response in responses:
                with decoding(url, job.model):
                    event = job.event(response)
                yield event

    def _turn(
        self, url: str, codec: SessionCodec, content: Request | None, turn: Turn, timeout_s: float | None
    ) -> Generator[Event, None, None]:
        """Send one turn of a session and yield its events; a turn is never retried."""
        deadline = Deadline(timeout_s, codec.model)
        tensors = codec.tensors(content, turn)
        check_tensors(self._ready_metadata(url, codec.model, deadline), tensors)
        with closing(self._responses(url, codec.kind, codec.model, tensors, deadline, turn)) as responses:
            for response in responses:
                if content is not None:
                    with decoding(url, codec.model):
                        event = codec.event(response)
                    yield event

    def _responses(
        self,
        url: str,
        request: Request | type[Request],
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn,
        stop: threading.Event | None = None,
    ) -> Generator[Tensors, None, None]:
        """Yield the responses of a model that streams, or the one response of any other model."""
        transport = self._transport_to(url)
        if request.streams:
            priority = triton_priority(request)
            yield from transport.stream(model, tensors, deadline, turn, priority=priority, stop=stop)
        else:
            yield transport.infer(model, tensors, deadline, turn)

    def _ready_metadata(self, url: str, model: str, deadline: Deadline) -> ModelMetadata:
        """Return a model's metadata; the first call also checks that server and model are ready."""
        if (url, model) not in self._metadata:
            transport = self._transport_to(url)
            metadata = transport.metadata(model, deadline)
            if not transport.model_ready(model, deadline):
                raise generation.not_ready_error(model, url)
            if not transport.server_ready(deadline):
                raise generation.not_ready_error(f"{model}'s server", url)
            self._metadata[url, model] = metadata
        return self._metadata[url, model]

    def _pause(self, model: str, route: Route, wait_s: float, stop: threading.Event | None = None) -> None:
        """Wait before the next attempt, but not longer than until a stop."""
        self.url = route.url
        for url in self._servers.addresses:
            self._metadata.pop((url, model), None)
        if stop is None:
            time.sleep(wait_s)
        else:
            stop.wait(wait_s)

    @property
    def _transport(self) -> Transport:
        return self._transports[self.url]

    def _transport_to(self, url: str) -> Transport:
        return self._transports[url]
