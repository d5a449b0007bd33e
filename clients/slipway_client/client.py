"""The blocking client: a request of any family in, events and results out; sessions turn by turn.

:class:`Client` puts a transport (gRPC or HTTP) under a :class:`Generation` or a :class:`Conversation`, which
decide everything that is not input or output. An iterator that is closed, dropped, or left by an exception
cancels its request.
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
from slipway_client.generation import Conversation, Generation
from slipway_client.metadata import ModelMetadata, check_tensors
from slipway_client.results import Assembler, Result
from slipway_client.retry import UNLIMITED, Attempts, Deadline, RetryPolicy
from slipway_client.snapshots import E, check_whole, expected
from slipway_client.tensors import Tensors
from slipway_serving import durations
from slipway_serving.errors import NotReady, SlipwayError
from slipway_serving.events import Event
from slipway_serving.requests import Request
from slipway_serving.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.turns import NO_SESSION, Session, Turn, Turns

END_S = 10.0
"""Seconds that the end of a session may take, which the server perhaps never heard of."""


class Client:
    """A connection to one Triton server.

    Attributes:
        url: "HOST:PORT" of the server's gRPC or HTTP port; "grpc://" or "http://" before it states the
            protocol, "grpcs://" or "https://" with TLS.
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
            url: of the server.
            protocol: "grpc", or "http" for networks that know nothing else. Either streams and cancels. By
                default the scheme of `url` says it; without a scheme it is "grpc".
            retry: how refused requests are tried again.
            connect_timeout_s: longest wait for a connection and for an answer about readiness, seconds.
            tls: folder of certificates for a URL of TLS, see :mod:`slipway_client.tls`; by default whom the
                system trusts, and no certificate of the client's own.

        Raises:
            InvalidRequest: there is no such protocol, it is not that of the URL, the URL or the time is none,
                or the certificates are not as they must be.
        """
        self.url = url
        self._protocol: generation.Protocol = stated_protocol(url, protocol) or "grpc"
        durations.check("client", "connect_timeout_s", connect_timeout_s)
        self._retry = retry or RetryPolicy()
        self._transport = _transport(url, self._protocol, connect_timeout_s, tls)
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
        self, request: Request, *, model: str | None = None, timeout_s: float | None = None
    ) -> Generator[Event | Result, None, None]:
        """Have a request of any family worked on.

        Args:
            request: what to generate; it says which model it is for.
            model: the served model, where it has another name.
            timeout_s: time limit of the whole, retries included, seconds; by default the request's own. A
                server that does not say so itself is asked to end the work 1 s later, and given up 1 s
                after that.

        Returns:
            An iterator of the events as they come, for example one :class:`Progress` per denoising step.
            Parts of a video are put together and come last, as one :class:`Video` or :class:`Frames`. Closing
            it cancels the work.

        Raises:
            InvalidRequest: the request breaks a rule, or the served model takes other tensors.
            NotReady: no server, or no such model, or it has not loaded; after the retries.
            Overloaded: the server has enough work; after the retries.
            Cancelled: the work was cancelled elsewhere.
            DeadlineExceeded: the time limit was reached.
            Unrecoverable: the server failed, or the stream is incomplete.
        """
        return self._generate(Generation(request, model, timeout_s, self._protocol, self._retry))

    def stream(
        self, request: Request, *, model: str | None = None, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Have a request worked on, and get every event as it comes, parts of a video too.

        Arguments and errors as :meth:`generate`.
        """
        return self._events(Generation(request, model, timeout_s, self._protocol, self._retry))

    def session(
        self, request: Request, *, model: str | None = None, session_id: int | str | None = None
    ) -> ClientSession:
        """Open a session of a stateful model: ``with client.session(request) as session``.

        Nothing is sent before its first turn; however the block ends, the session ends on the server.

        Args:
            request: what opens the session; its `turn` says what each turn brings.
            model: the served model, where it has another name.
            session_id: unique among the model's sessions; a random one where it is left out.

        Raises:
            InvalidRequest: the request opens no session.
        """
        return ClientSession(self._turn, Conversation(request, model, self._protocol), Turns(session_id))

    def restore(
        self,
        request: type[Request],
        parts: Iterable[bytes],
        *,
        model: str | None = None,
        session_id: int | str | None = None,
    ) -> ClientSession:
        """Go on with a session from a snapshot: ``with client.restore(UniversalRequest, parts) as session``.

        Args:
            request: class of the request that opened the session.
            parts: as :meth:`ClientSession.snapshot` gave them; they are sent one by one before this returns.
            model: the served model, where it has another name.
            session_id: as of :meth:`session`.

        Raises:
            InvalidRequest: the parts are not whole, or of another model.
            SlipwayError: as :meth:`generate`; nothing stays of the session then.
        """
        talk = Conversation(request, model, self._protocol)
        session = ClientSession(self._turn, talk, Turns(session_id))
        taken = None
        try:
            for part in parts:
                taken = session.only(Restore(part), Restored)
            check_whole(talk.model, taken)
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
        """Call any model that answers once.

        Args:
            model: the served model.
            tensors: by input name, with the batch dimension if the model batches; text as bytes objects.
            timeout_s: time limit, seconds.
            turn: the request's place in a session, for a model that keeps state between requests. A refused
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
                check_tensors(self._ready_metadata(model, deadline), tensors)
                return self._transport.infer(model, tensors, deadline, turn)
            except SlipwayError as error:
                if turn.id:
                    raise
                self._pause(model, attempts.wait_s(error))

    def is_ready(self, model: str | None = None) -> bool:
        """Tell whether the server answers and is ready, or one of its models is; without retries."""
        try:
            self.check_ready(model)
        except NotReady:
            return False
        return True

    def check_ready(self, model: str | None = None) -> None:
        """Check that the server is ready, or one of its models; without retries.

        Args:
            model: Name of a served model; None asks for the server with all of its models.

        Raises:
            NotReady: The error says why: nothing listens, the host is unknown, it is not Triton, TLS does not
                fit, the server has no such model, or something is not loaded.
        """
        if model is None:
            if not self._transport.server_ready():
                raise generation.server_not_ready(self.url)
            return
        self._transport.metadata(model)
        if not self._transport.model_ready(model):
            raise generation.not_ready(model, self.url)

    def is_live(self) -> bool:
        """Tell whether the server answers, ready or not; without retries."""
        try:
            self.check_live()
        except NotReady:
            return False
        return True

    def check_live(self) -> None:
        """Check that the server answers, ready or not; without retries.

        Raises:
            NotReady: As :meth:`check_ready`.
        """
        if not self._transport.server_live():
            raise generation.not_live(self.url)

    def model_metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors; without retries.

        Raises:
            NotReady: no server, or no such model.
        """
        return self._transport.metadata(model)

    def model_parameters(self, model: str) -> dict[str, str]:
        """Ask for the parameters of a model's configuration, by name; without retries.

        Raises:
            NotReady: no server, or no such model.
        """
        return self._transport.parameters(model)

    def _generate(self, job: Generation) -> Generator[Event | Result, None, None]:
        assembler = Assembler(job.request, job.model)
        with closing(self._events(job)) as events:
            for event in events:
                with decoding(self.url, job.model):
                    whole = assembler.add(event)
                if whole is not None:
                    yield whole
        with decoding(self.url, job.model):
            results = assembler.results()
        yield from results

    def _events(self, job: Generation) -> Generator[Event, None, None]:
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
        self, talk: Conversation, content: Request | None, turn: Turn, timeout_s: float | None
    ) -> Generator[Event, None, None]:
        """Send one turn of a session and yield its events; it is never tried again."""
        deadline = Deadline(timeout_s, talk.model)
        tensors = talk.tensors(content, turn)
        check_tensors(self._ready_metadata(talk.model, deadline), tensors)
        with closing(self._responses(talk.kind, talk.model, tensors, deadline, turn)) as responses:
            for response in responses:
                if content is not None:
                    with decoding(self.url, talk.model):
                        event = talk.event(response)
                    yield event

    def _responses(
        self,
        request: Request | type[Request],
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn,
    ) -> Generator[Tensors, None, None]:
        if request.streams:
            yield from self._transport.stream(model, tensors, deadline, turn)
        else:
            yield self._transport.infer(model, tensors, deadline, turn)

    def _ready_metadata(self, model: str, deadline: Deadline) -> ModelMetadata:
        """Return a model's metadata; the first time after asking whether server and model are ready."""
        if model not in self._known:
            metadata = self._transport.metadata(model, deadline)
            if not self._transport.model_ready(model, deadline):
                raise generation.not_ready(model, self.url)
            if not self._transport.server_ready(deadline):
                raise generation.not_ready(f"{model}'s server", self.url)
            self._known[model] = metadata
        return self._known[model]

    def _pause(self, model: str, wait_s: float) -> None:
        self._known.pop(model, None)
        time.sleep(wait_s)


class ClientSession:
    """One session of a stateful model, see :meth:`Client.session`.

    Args:
        send: sends a turn's content, within a time limit in seconds, and yields its events.
        talk: what the turns are made of.
        turns: of the session.
    """

    def __init__(
        self,
        send: Callable[[Conversation, Request | None, Turn, float | None], Generator[Event, None, None]],
        talk: Conversation,
        turns: Turns,
    ) -> None:
        self._timeout_s: float | None = None
        self._session: Session[Request, Event] = Session(
            lambda content, turn: send(talk, content, turn, self._timeout_s if content else END_S), turns
        )

    @property
    def id(self) -> int | str:
        """The session's id, by which the server knows it."""
        return self._session.id

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session on the server, if it is under way."""
        self._session.close()

    def step(
        self, turn: Request, *, last: bool = False, timeout_s: float | None = None
    ) -> Generator[Event, None, None]:
        """Send one turn and yield its events as they come; it is sent when the first is asked for.

        Leaving the iterator cancels the turn, and what is left of the session is to be ended.

        Args:
            turn: what the turn brings, of the class that the opening request names.
            last: the session ends with it.
            timeout_s: time limit of the turn, seconds.

        Raises:
            SlipwayError: as :meth:`Client.generate`; a turn is never tried again.
        """
        self._timeout_s = timeout_s
        yield from self._session.step(turn, last=last)

    def snapshot(self) -> Generator[bytes, None, None]:
        """Yield the session's state in parts, by which :meth:`Client.restore` goes on with it elsewhere.

        The session stays under way. No turn may come between two parts.

        Raises:
            SlipwayError: as :meth:`step`.
        """
        for number in itertools.count():
            found = self.only(Snapshot(number), SnapshotPart)
            yield found.data
            if number + 1 >= found.parts:
                return

    def only(self, turn: Request, kind: type[E]) -> E:
        """Send one turn and return its one event.

        Raises:
            Unrecoverable: there are others.
            SlipwayError: as :meth:`step`.
        """
        return expected(list(self.step(turn)), kind)


class _Transport(Protocol):
    """What either protocol can do."""

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
    # Imported here: a command that talks to no server, or over one protocol, loads no other.
    if protocol == "grpc":
        from slipway_client.over_grpc import GrpcTransport

        return GrpcTransport(url, connect_timeout_s, tls)
    from slipway_client.over_http import HttpTransport

    return HttpTransport(url, connect_timeout_s, tls)
