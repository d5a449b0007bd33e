"""Caller's side of sessions: it sends turns in order and always ends the session.

A stateful model tells sessions apart by an ID (Triton's correlation ID). Each request is a :class:`Turn` of
one session: the first begins it, the last ends it. :class:`Turns` counts them. :class:`Session` sends them
and is a context manager that ends the session whether its body ends, fails or is left early. Pipelines use it
between models inside Triton, clients from outside; both give it the function that sends.
"""

from __future__ import annotations

import contextlib
import secrets
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

from slipway_serving.protocol.caller_ids import session_id_problem
from slipway_serving.protocol.errors import InvalidRequest, Overloaded, SlipwayError, raise_all

T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True)
class Turn:
    """Position of a request in a session, and in the trace of its caller.

    Attributes:
        id: Session ID, a number above 0 or a text, unique among the sessions of the model; 0 or "" means no
            session.
        start: True if the request begins its session.
        end: True if the request ends its session.
        traceparent: Trace of the caller as a header of W3C Trace Context, which the server's own trace
            continues; "" means none.
    """

    id: int | str = 0
    start: bool = False
    end: bool = False
    traceparent: str = ""


NO_SESSION = Turn()
"""Turn of a request that belongs to no session."""


class Turns:
    """Counter of the turns of one session, on the side that sends them.

    Args:
        session_id: Session ID; None makes a random one, a number if `numbered`, else a text.
        numbered: True if a random ID must be a number, as calls between models in Triton require.

    Attributes:
        id: Session ID.

    Raises:
        InvalidRequest: The id is neither a text of 1 to 128 bytes nor a whole number above 0.
    """

    def __init__(self, session_id: int | str | None = None, *, numbered: bool = False) -> None:
        random_id = secrets.randbits(63) | 1 if numbered else uuid.uuid4().hex
        self.id: int | str = random_id if session_id is None else session_id
        problem = session_id_problem(self.id)
        raise_all("session", [problem] if problem else [])
        self._started = self._ended = False

    def next(self, *, last: bool = False) -> Turn:
        """Return the next turn.

        Args:
            last: True if this turn ends the session.

        Raises:
            InvalidRequest: The session has ended.
        """
        if self._ended:
            raise InvalidRequest(f"session {self.id} has ended; begin a new session")
        turn = Turn(self.id, start=not self._started, end=last)
        self._started, self._ended = True, last
        return turn

    @property
    def closing(self) -> Turn | None:
        """Turn that ends the session without further work; None if the session is not open."""
        return Turn(self.id, end=True) if self._started and not self._ended else None

    def record_end(self) -> None:
        """Record that the session has ended."""
        self._ended = True

    def record_failure(self, turn: Turn, error: BaseException) -> None:
        """Record that a turn failed, so it is unknown whether the server began or ended the session.

        The session counts as still open and is ended once more. But a server that refused the first turn as
        Overloaded has not begun the session, so the next turn is the first again.

        Args:
            turn: Turn that failed.
            error: Error with which it failed.
        """
        self._ended = False
        if turn.start and isinstance(error, Overloaded):
            self._started = False


class Session(Generic[T, A]):
    """One session of a stateful model, used as a context manager.

    Args:
        send: Function that sends a turn's content and yields the answers; None as content only ends the
            session.
        turns: Turn counter of the session.
    """

    def __init__(self, send: Callable[[T | None, Turn], Iterator[A]], turns: Turns) -> None:
        self._send, self._turns = send, turns

    @property
    def id(self) -> int | str:
        """Session ID."""
        return self._turns.id

    def __enter__(self) -> Session[T, A]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, content: T, *, last: bool = False) -> Iterator[A]:
        """Send one turn and yield its answers; the turn is sent when the first answer is requested.

        Args:
            content: Content of the turn.
            last: True if this turn ends the session.

        Raises:
            SlipwayError: The model answered with this error.
        """
        turn = self._turns.next(last=last)
        try:
            yield from self._send(content, turn)
        except BaseException as error:
            self._turns.record_failure(turn, error)
            raise

    def close(self) -> None:
        """End the session if it is open; the model then frees its state."""
        if (turn := self._turns.closing) is not None:
            self._turns.record_end()
            # The caller must see the error that ended the body, not one of this request. If this request
            # fails, the session ends when its idle time is over.
            with contextlib.suppress(SlipwayError):
                for _ in self._send(None, turn):
                    pass
