"""State of one request or one session, without input and output; shared by both clients.

It is created from the request before anything is sent, and holds the tensors, the deadline, the attempts and
the decoding of the answers. The clients only move bytes and sleep as it tells them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from slipway_client.metadata import ModelMetadata, check_tensors
from slipway_client.retry import Attempts, Deadline, RetryPolicy
from slipway_client.tensors import Tensors
from slipway_serving.protocol.errors import InvalidRequest, NotReady, SlipwayError
from slipway_serving.protocol.events import BASE64, Event, read
from slipway_serving.protocol.fields import Rule, fields_of
from slipway_serving.protocol.requests import Request, encode, ending_tensors
from slipway_serving.protocol.turns import Turn

Protocol = Literal["grpc", "http"]

# The server receives the limit and checks it between steps; this grace lets it report the timeout itself.
_SERVER_GRACE_S = 1.0


class Generation:
    """State of one generation.

    Attributes:
        request: Request as it is sent.
        model: Name of the served model.
        tensors: Tensors of the request, encoded for the protocol.
        deadline: Deadline of the whole generation, attempts included.
    """

    def __init__(
        self,
        request: Request,
        model: str | None,
        timeout_s: float | None,
        protocol: Protocol,
        policy: RetryPolicy,
    ) -> None:
        self.request, enforced = _apply_time_limit(_for_protocol(request, protocol), timeout_s)
        self.model = request.model if model is None else model
        self.tensors: Tensors = encode(self.request)
        limit_s = getattr(self.request, "timeout_s", timeout_s)
        self.deadline = Deadline(limit_s, self.model, grace_s=_SERVER_GRACE_S if enforced else 0.0)
        self._attempts = Attempts(policy, self.deadline)
        self._has_response = False
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
        self._has_response = True
        return read(self.request.events, response, self.model, as_text=self._as_text)

    def wait_s(self, error: SlipwayError) -> float:
        """Return how long to wait before another attempt, in seconds.

        Raises:
            SlipwayError: No further attempt is made, so `error` is raised; always after the first response.
        """
        if self._has_response:
            raise error
        return self._attempts.wait_s(error)


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
