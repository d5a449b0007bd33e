"""Session store of a stateful model: it begins, finds, limits, expires and frees sessions.

A model keeps one state per open session. :meth:`Sessions.acquire` begins a session or finds its state and
takes the state out of the store for one turn. :meth:`Sessions.store` puts it back, or drops it after the last
turn. :meth:`Sessions.drop` drops it. :meth:`Sessions.turn` does all of this around a block. A thread drops
idle sessions, so the model holds nothing for callers who are gone. The IDs of open sessions are also written
to files (:mod:`slipway_serving.system.process_state`), so that a request for a session that died with its
process gets :class:`~slipway_serving.protocol.errors.SessionLost`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from slipway_serving.protocol.errors import InvalidRequest, Overloaded, SessionLost, raise_all
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.metrics import SESSIONS_LIMIT, SESSIONS_OPEN
from slipway_serving.runtime.program import Settings
from slipway_serving.system.process_state import NO_PROCESS_STATE, ProcessState

S = TypeVar("S")

_CHECKS_PER_IDLE_TIME = 6


class TurnState(Generic[S]):
    """State of a session during one turn.

    Attributes:
        state: State that the next turn receives; the turn may replace it.
    """

    def __init__(self, state: S) -> None:
        self.state = state


class Sessions(Generic[S]):
    """Open sessions of a model.

    Args:
        where: Name of the model, for error messages.
        limit: Largest number of open sessions.
        idle_s: Idle time after which a session is freed, in seconds.
        clock: Monotonic clock, in seconds.
        process_state: State files of the process.
    """

    def __init__(
        self,
        where: str,
        limit: int,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
        process_state: ProcessState = NO_PROCESS_STATE,
    ) -> None:
        self._where, self._limit, self._idle_s, self._clock = where, limit, idle_s, clock
        self._process_state = process_state
        self._idle_states: dict[Hashable, tuple[float, S]] = {}
        self._in_turn: set[Hashable] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._idle_thread = threading.Thread(
            target=self._drop_idle_until_closed, name=f"{where}-sessions", daemon=True
        )
        self._idle_thread.start()

    @classmethod
    def from_settings(cls, settings: Settings) -> Sessions[S]:
        """Create the session store of a model with the limits of its config, and publish its metrics.

        Raises:
            InvalidRequest: `max_sessions` or `session_idle_s` of the config is not a whole number above 0.
        """
        limit = settings.positive_integer("max_sessions")
        idle_s = settings.positive_integer("session_idle_s")
        sessions: Sessions[S] = cls(settings.model, limit, idle_s, process_state=settings.process_state)
        settings.recorder.register_gauge(SESSIONS_OPEN, sessions.count_open)
        settings.recorder.register_gauge(SESSIONS_LIMIT, lambda: limit)
        return sessions

    def __len__(self) -> int:
        return len(self._idle_states)

    def count_open(self) -> int:
        """Return the number of open sessions, both those between turns and those within a turn."""
        with self._lock:
            return len(self._idle_states.keys() | self._in_turn)

    def check_id(self, turn: Turn, *, fix: str = "") -> None:
        """Check that a request has a session ID if it begins or ends a session or if `fix` is given.

        Args:
            turn: Turn of the request.
            fix: Advice for the error message; models that accept only requests of sessions give it.

        Raises:
            InvalidRequest: The request has no session ID.
        """
        if turn.id or not (fix or turn.start or turn.end):
            return
        rule = "must be given" if fix else "must be given to begin or end a session"
        raise_all(self._where, [f"session id {rule}, got none" + (f"; try {fix}" if fix else "")])

    def check_id_is_new(self, turn: Turn) -> None:
        """Check that a request which begins a session does not reuse the ID of an open session.

        Models call this if a session is too valuable to be replaced by a new one with the same ID.

        Raises:
            InvalidRequest: A session with this ID is open; it stays unchanged.
        """
        if not turn.start:
            return
        self.drop_idle()
        with self._lock:
            is_open = turn.id in self._idle_states or turn.id in self._in_turn
        if is_open:
            raise InvalidRequest(
                f"{self._where}: session {turn.id!r} is already open; end it first, or begin another id"
            )

    def acquire(self, turn: Turn, begin: Callable[[], S]) -> S:
        """Begin a session or find its state, which leaves the store until it is kept or freed.

        Args:
            turn: Turn of the request. A first turn begins a new session and drops an older one with the same
                ID. A turn without an ID gets a state of its own that is never stored.
            begin: Function that makes the first state.

        Raises:
            InvalidRequest: The session is not open.
            SessionLost: The session was open in a process of the model that ended.
            Overloaded: The number of sessions that are not idle has reached the limit.
        """
        if not turn.id:
            return begin()
        self.drop_idle()
        if turn.start:
            self.drop(turn)
            self._check_limit()
            state = begin()
            self._process_state.record_session(turn.id)
        else:
            state = self._acquire_open(turn)
        with self._lock:
            self._in_turn.add(turn.id)
        return state

    def store(self, turn: Turn, state: S) -> None:
        """Store a session's state for its next turn; after the last turn, drop it."""
        with self._lock:
            self._in_turn.discard(turn.id)
            if turn.id and not turn.end:
                self._idle_states[turn.id] = (self._clock(), state)
            elif turn.id:
                self._process_state.remove_session(turn.id)

    def drop(self, turn: Turn) -> None:
        """Free a session's state; do nothing if there is none."""
        with self._lock:
            self._idle_states.pop(turn.id, None)
            self._in_turn.discard(turn.id)
            self._process_state.remove_session(turn.id)

    @contextlib.contextmanager
    def turn(
        self, turn: Turn, begin: Callable[[], S], check: Callable[[S], None] = lambda _: None
    ) -> Iterator[TurnState[S]]:
        """Give a block the state for one turn: keep the state when the block ends, free it when it fails.

        A block that a closed generator leaves early (GeneratorExit) counts as failed.

        Args:
            turn: Turn of the request, see :meth:`acquire`.
            begin: Function that makes the first state.
            check: Function that inspects the state before any work; if it raises, a session that was already
                open stays unchanged.

        Raises:
            InvalidRequest: The session is not open.
            SessionLost: The session was open in a process of the model that ended.
            Overloaded: Too many sessions are open.
        """
        turn_state = TurnState(self.acquire(turn, begin))
        try:
            check(turn_state.state)
        except BaseException:
            if turn.start:
                self.drop(turn)
            else:
                self.store(turn, turn_state.state)
            raise
        try:
            yield turn_state
        except BaseException:
            self.drop(turn)
            raise
        self.store(turn, turn_state.state)

    def drop_idle(self) -> None:
        """Free the sessions that have been idle for longer than the limit."""
        oldest_s = self._clock() - self._idle_s
        with self._lock:
            for key in [key for key, (since_s, _) in self._idle_states.items() if since_s < oldest_s]:
                del self._idle_states[key]
                self._process_state.remove_session(key)

    def close(self) -> None:
        """Free all sessions and end the thread; the sessions are lost."""
        self._closed.set()
        self._idle_thread.join()
        with self._lock:
            self._idle_states.clear()

    def _check_limit(self) -> None:
        if self.count_open() >= self._limit:
            raise Overloaded(
                f"{self._where}: all {self._limit} sessions are in use; try again when one of them has ended"
            )

    def _acquire_open(self, turn: Turn) -> S:
        """Take the state of an open session out of the store.

        Raises:
            InvalidRequest: The session is not open.
            SessionLost: The session was open in a process of the model that ended.
        """
        with self._lock:
            found = self._idle_states.pop(turn.id, None)
        if found is None and self._process_state.has_lost_session(turn.id):
            if turn.end:
                self._process_state.forget_session(turn.id)
            raise SessionLost(
                f"{self._where}: session {turn.id!r} was lost when the model's process ended; begin a new one"
            )
        if found is None:
            raise InvalidRequest(
                f"{self._where}: session {turn.id!r} is not open (sessions expire after {self._idle_s:g} s"
                " idle); begin a new one"
            )
        return found[1]

    def _drop_idle_until_closed(self) -> None:
        while not self._closed.wait(self._idle_s / _CHECKS_PER_IDLE_TIME):
            self.drop_idle()
