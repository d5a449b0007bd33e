"""State of one request or one session, without input and output; shared by both clients.

It is created from the request before anything is sent, and holds the tensors, the deadline, the attempts and
the decoding of the answers. The clients only move bytes and sleep as it tells them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, Literal

from slipway_client.delivered_parts import DeliveredPart, form_of
from slipway_client.metadata import ModelMetadata, check_tensors
from slipway_client.retry import Attempts, Deadline, RetryPolicy
from slipway_client.states import split_state
from slipway_client.tensors import Tensors
from slipway_serving.protocol.diffusion.stopping import DenoisingRequest
from slipway_serving.protocol.errors import InvalidRequest, NotReady, SlipwayError
from slipway_serving.protocol.events import BASE64, WAITING, Event, Progress, read
from slipway_serving.protocol.fields import Rule, fields_of
from slipway_serving.protocol.requests import Request, encode, ending_tensors
from slipway_serving.protocol.turns import Turn

Protocol = Literal["grpc", "http"]

# The server receives the limit and checks it between steps; this grace lets it report the timeout itself.
_SERVER_GRACE_S = 1.0
# The served models have three priorities, 1 is the highest, and 2 is their default.
_TRITON_PRIORITIES = {"urgent": 1, "low": 3}


class Generation:
    """State of one generation.

    Attributes:
        request: Request as it is sent, with the server's own parts of a state.
        model: Name of the served model.
        tensors: Tensors of the request, encoded for the protocol.
        delivered: Parts of the result that the state of the request has.
        deadline: Deadline of the whole generation, attempts included.
        turn: No position in a session, with the trace of the caller.
        has_begun: True if the server has answered the current attempt and does not merely let it wait.
    """

    def __init__(
        self,
        request: Request,
        model: str | None,
        timeout_s: float | None,
        protocol: Protocol,
        policy: RetryPolicy,
        stop: threading.Event | asyncio.Event | None = None,
        traceparent: str = "",
    ) -> None:
        self.model = request.model if model is None else model
        request, self.delivered = _split(request, self.model)
        applied, enforced = _apply_time_limit(_for_protocol(request, protocol), timeout_s)
        self.request: Request = applied
        self.tensors: Tensors = encode(self.request)
        limit_s = getattr(self.request, "timeout_s", timeout_s)
        self.deadline = Deadline(limit_s, self.model, grace_s=_SERVER_GRACE_S if enforced else 0.0)
        self._policy, self._stop = policy, stop
        self.turn = Turn(traceparent=traceparent)
        # The first attempt's time counts; later attempts count from the failure after the last response.
        self._attempts: Attempts | None = Attempts(policy, self.deadline)
        self.has_begun = False
        # A model with one response is called through /infer, whose tensors are binary over HTTP too.
        self._as_text = protocol == "http" and self.request.streams

    def check(self, metadata: ModelMetadata) -> None:
        """Check the request against the served model.

        Raises:
            InvalidRequest: The model takes other tensors.
        """
        check_tensors(metadata, self.tensors)

    def event(self, response: Tensors) -> Event:
        """Decode a response into an event.

        Raises:
            Unrecoverable: The response is none of the request's events.
        """
        event = read(self.request.events, response, self.model, as_text=self._as_text)
        self._attempts = None
        is_waiting = isinstance(event, Progress) and event.phase == WAITING
        self.has_begun = self.has_begun or not is_waiting
        return event

    @property
    def is_stopping(self) -> bool:
        """True if the caller has asked to stop."""
        return self._stop is not None and self._stop.is_set()

    def wait_s(self, error: SlipwayError, *, can_repeat: bool = False) -> float:
        """Return how long to wait before another attempt, in seconds.

        Args:
            error: Error of the last attempt.
            can_repeat: True if work that a failed server has begun may be done again.

        Raises:
            SlipwayError: No further attempt is made, so `error` is raised; always after a stop, and after the
                work has begun unless it can be repeated and the server became unavailable.
        """
        is_lost = self.has_begun and not (can_repeat and isinstance(error, NotReady))
        if is_lost or self.is_stopping:
            raise error
        self._attempts = self._attempts or Attempts(self._policy, self.deadline)
        wait_s = self._attempts.wait_s(error)
        self.has_begun = False
        return wait_s

    def begin_again(self) -> None:
        """Give the next attempts the policy's whole budget, after a server has stopped the request."""
        self._attempts = Attempts(self._policy, self.deadline)
        self.has_begun = False

    def continue_from(self, state: bytes | None, steps_seen: int) -> None:
        """Let the next attempt continue a video.

        Args:
            state: State from which it continues; None leaves the request as its caller made it.
            steps_seen: Number of steps that were seen done, for the server's count of repeated steps.
        """
        if not isinstance(self.request, DenoisingRequest):
            return
        continue_from = self.request.continue_from if state is None else state
        self.request = dataclasses.replace(
            self.request, continue_from=continue_from, steps_seen=steps_seen or None
        )
        self.tensors = encode(self.request)


class SessionCodec:
    """Encoder of a session's turns and decoder of their answers.

    Args:
        opening: Request that opens the session, or its class if the session resumes from a snapshot.
        model: Name of the served model, if it differs from the request's.
        protocol: Protocol of the transport, "grpc" or "http".

    Attributes:
        kind: Class of the request that opens such a session.
        model: Name of the served model.
    """

    def __init__(self, opening: Request | type[Request], model: str | None, protocol: Protocol) -> None:
        self._opening: Request | None = None
        if isinstance(opening, Request):
            self._opening = _for_protocol(opening, protocol)
        self.kind = type(opening) if isinstance(opening, Request) else opening
        self._protocol = protocol
        if self.kind.turn is None:
            raise InvalidRequest(
                f"{opening.model}: request must be one that opens a session, got {self.kind.__name__}; try"
                " client.generate for a request without turns"
            )
        self.model = opening.model if model is None else model

    def tensors(self, content: Request | None, turn: Turn) -> Tensors:
        """Return the tensors of a turn; the first turn also carries the opening request.

        Args:
            content: Content of the turn; None only ends the session.
            turn: Place of the turn in the session.

        Raises:
            InvalidRequest: The content is not a turn of this session.
        """
        if content is None:
            return ending_tensors(self.kind)
        turn_kinds = [kind for kind in (self.kind.turn, *self.kind.turn_alternatives) if kind is not None]
        if not isinstance(content, tuple(turn_kinds)):
            raise InvalidRequest(
                f"{self.model}: a turn must be {' or '.join(kind.__name__ for kind in turn_kinds)},"
                f" got {type(content).__name__}"
            )
        opening_tensors: Mapping[str, Any] = encode(self._opening) if turn.start and self._opening else {}
        return {**opening_tensors, **encode(_for_protocol(content, self._protocol))}

    def event(self, response: Tensors) -> Event:
        """Decode a response into an event; see :meth:`Generation.event`."""
        # A model with one response is called through /infer, whose tensors are binary over HTTP too.
        as_text = self._protocol == "http" and self.kind.streams
        return read(self.kind.events, response, self.model, as_text=as_text)


def triton_priority(request: Request | type[Request]) -> int | None:
    """Return Triton's priority of a request in its model's queue, or None for the usual one."""
    return _TRITON_PRIORITIES.get(request.priority) if isinstance(request, DenoisingRequest) else None


def not_ready_error(what: str, url: str) -> NotReady:
    """Return the error for a server or a model that reports that it is not ready."""
    return NotReady(f"{what}: not ready on {url}; try again when it has loaded, or see the server's log")


def server_not_ready_error(url: str) -> NotReady:
    """Return the error for a server that answers and reports that it is not ready."""
    return NotReady(
        f"{url}: the server is live but not ready: it is starting or stopping, or one of its models is not"
        " loaded; try again later, `slipway ready --model NAME` for each model, or see the server's log"
    )


def not_live_error(url: str) -> NotReady:
    """Return the error for a server that answers and reports that it is not live."""
    return NotReady(f"{url}: the server reports that it is not live; see its log and restart it")


def _split(request: Request, model: str) -> tuple[Request, tuple[DeliveredPart, ...]]:
    """Return a request with the server's own parts of its state, and the delivered parts of the state.

    Raises:
        InvalidRequest: The delivered parts are damaged, or the request asks for another form of the result.
    """
    if not isinstance(request, DenoisingRequest) or (state := request.state) is None:
        return request, ()
    own, delivered = split_state(state, model)
    if not delivered:
        return request, ()
    output, form = getattr(request, "output", None), form_of(delivered)
    if output is not None and output.removesuffix(BASE64) != form:
        raise InvalidRequest(
            f"{model}: output must be {form}, the form of the parts that the state has, got {output};"
            f" try {form}"
        )
    return dataclasses.replace(request, continue_from=own), delivered


def _apply_time_limit(request: Request, timeout_s: float | None) -> tuple[Any, bool]:
    """Return a request with its time limit, and True if its model enforces one."""
    enforced = any(field.name == "timeout_s" for field in fields_of(type(request)))
    if timeout_s is not None and enforced:
        request = dataclasses.replace(request, timeout_s=timeout_s)  # type: ignore[type-var]
    return request, enforced


def _for_protocol(request: Request, protocol: Protocol) -> Any:
    """Return a request whose result the protocol can carry: HTTP carries bytes as base64 text."""
    if protocol == "grpc":
        return request
    rule = next((field.rule for field in fields_of(type(request)) if field.name == "output"), None)
    text_form = f"{getattr(request, 'output', '')}{BASE64}"
    if isinstance(rule, Rule) and rule.accepts(text_form):
        return dataclasses.replace(request, output=text_form)  # type: ignore[type-var]
    return request
