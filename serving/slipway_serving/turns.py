"""Sessions as their callers see them: turns in their order, and an end however the caller's work ends.

A stateful model tells sessions apart by an id (Triton's correlation id). Each request is a :class:`Turn` of
one session: the first begins it, the last ends it. :class:`Turns` counts them; :class:`Session` sends them
and, as a context manager, ends what it began, whether its body ends, fails or is left. Pipelines use it
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

from slipway_serving.caller_ids import session_id_problem
from slipway_serving.errors import InvalidRequest, Overloaded, SlipwayError, raise_all

T = TypeVar("T")
A = TypeVar("A")


@dataclass(frozen=True)
class Turn:
    """A request's place in a session.

    Attributes:
        id: the session's, a number above 0 or a text, unique among the sessions of the model; 0 or "" is no
            session.
        start: whether the request begins its session.
        end: whether the request ends its session.
    """

    id: int | str = 0
    start: bool = False
    end: bool = False


NO_SESSION = Turn()
"""The place of a request that belongs to no session."""


class Turns:
    """The turns of one session, counted where they are sent.

    Args:
        session_id: a random one where it is left out: a number if `numbered`, else a text.
        numbered: whether ids are numbers, as calls between models of Triton need them.

    Attributes:
        id: of the session.

    Raises:
        InvalidRequest: The id is neither a text of 1 to 128 bytes nor a whole number above 0.
    """

    def __init__(self, session_id: int | str | None = None, *, numbered: bool = False) -> None:
        made = secrets.randbits(63) | 1 if numbered else uuid.uuid4().hex
        self.id: int | str = made if session_id is None else session_id
        problem = session_id_problem(self.id)
        raise_all("session", [problem] if problem else [])
        self._begun = self._ended = False

    def next(self, *, last: bool = False) -> Turn:
        """Return the next turn.

        Args:
            last: the session ends with it.

        Raises:
            InvalidRequest: the session has ended.
        """
        if self._ended:
            raise InvalidRequest(f"session {self.id}: must be under way, got a turn after its end")
        turn = Turn(self.id, start=not self._begun, end=last)
        self._begun, self._ended = True, last
        return turn

    @property
    def closing(self) -> Turn | None:
        """The turn that ends the session without further work; None where nothing is under way."""
        return Turn(self.id, end=True) if self._begun and not self._ended else None

    def closed(self) -> None:
        """Take note that the session has ended."""
        self._ended = True

    def failed(self, turn: Turn, error: BaseException) -> None:
        """Take note that a turn failed: whether a first one began or a last one ended anything is not known.

        What may be under way is ended once more. A server that has enough has begun nothing: there the next
        turn is the first again.

        Args:
            turn: that failed.
            error: why.
        """
        self._ended = False
        if turn.start and isinstance(error, Overloaded):
            self._begun = False


class Session(Generic[T, A]):
    """One session of a stateful model; use as a context manager.

    Args:
        send: sends a turn's content and yields the answers; None as content ends the session and no more.
        turns: of the session.
    """

    def __init__(self, send: Callable[[T | None, Turn], Iterator[A]], turns: Turns) -> None:
        self._send, self._turns = send, turns

    @property
    def id(self) -> int | str:
        """The session's id."""
        return self._turns.id

    def __enter__(self) -> Session[T, A]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self, content: T, *, last: bool = False) -> Iterator[A]:
        """Send one turn and yield its answers; it is sent when the first is asked for.

        Args:
            content: of the turn.
            last: the session ends with it.

        Raises:
            SlipwayError: the model's.
        """
        turn = self._turns.next(last=last)
        try:
            yield from self._send(content, turn)
        except BaseException as error:
            self._turns.failed(turn, error)
            raise

    def close(self) -> None:
        """End the session, if it is under way; the model frees what it holds of it."""
        if (turn := self._turns.closing) is not None:
            self._turns.closed()
            # Whatever ended the body is what its caller must hear of; idle sessions end by themselves.
            with contextlib.suppress(SlipwayError):
                for _ in self._send(None, turn):
                    pass
