"""Session store of a stateful model: it begins, finds, limits, expires and frees sessions.

A model keeps one state per open session. :meth:`Sessions.take` begins a session or finds its state and takes
the state out of the store for one turn. :meth:`Sessions.keep` puts it back, or drops it after the last turn.
:meth:`Sessions.free` drops it. :meth:`Sessions.turn` does all of this around a block. A thread drops idle
sessions, so the model holds nothing for callers who are gone. The IDs of open sessions are also kept outside
of the process (:mod:`slipway_serving.system.process_state`), so that a request for a session that died with
its process gets :class:`~slipway_serving.protocol.errors.SessionLost`.
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

_SWEEPS_PER_IDLE_TIME = 6


class Taken(Generic[S]):
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
        self._held: dict[Hashable, tuple[float, S]] = {}
        self._taken: set[Hashable] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name=f"{where}-sessions", daemon=True)
        self._sweeper.start()

    @classmethod
    def of_model(cls, settings: Settings) -> Sessions[S]:
        """Create the session store of a model with the limits of its config, and publish its metrics.

        Raises:
            InvalidRequest: `max_sessions` or `session_idle_s` of the config is not a whole number above 0.
        """
        limit = settings.positive_integer("max_sessions")
        idle_s = settings.positive_integer("session_idle_s")
        sessions: Sessions[S] = cls(settings.model, limit, idle_s, process_state=settings.process_state)
        settings.recorder.register_gauge(SESSIONS_OPEN, sessions.under_way)
        settings.recorder.register_gauge(SESSIONS_LIMIT, lambda: limit)
        return sessions

    def __len__(self) -> int:
        return len(self._held)

    def under_way(self) -> int:
        """Return the number of open sessions, both those between turns and those within a turn."""
        with self._lock:
            return len(self._held.keys() | self._taken)

    def check(self, turn: Turn, *, fix: str = "") -> None:
        """Check that a request has a session ID if it begins or ends a session or if `fix` is given.

        Args:
            turn: Turn of the request.
            fix: Advice for the error message; models that accept only requests of sessions give it.

        Raises:
            InvalidRequest: The request has no session ID.
        """
        if turn.id or not (fix or turn.start or turn.end):
            return
        rule = "must be given" if fix else "must be given with SEQUENCE_START and SEQUENCE_END"
        raise_all(self._where, [f"correlation id {rule}, got none" + (f"; try {fix}" if fix else "")])

    def check_new(self, turn: Turn) -> None:
        """Check that a request which begins a session does not reuse the ID of an open session.

        Models call this if a session is too valuable to be replaced by a new one with the same ID.

        Raises:
            InvalidRequest: A session with this ID is open; it stays unchanged.
        """
        if not turn.start:
            return
        self.drop_idle()
        with self._lock:
            known = turn.id in self._held or turn.id in self._taken
        if known:
            raise InvalidRequest(
                f"{self._where}: correlation id must be of no session under way with SEQUENCE_START, got"
                f" {turn.id!r}; try SEQUENCE_END first, or another id"
            )

    def take(self, turn: Turn, begin: Callable[[], S]) -> S:
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
            self.free(turn)
            self._check_room()
            state = begin()
            self._process_state.record_session(turn.id)
        else:
            state = self._found(turn)
        with self._lock:
            self._taken.add(turn.id)
        return state

    def keep(self, turn: Turn, state: S) -> None:
        """Store a session's state for its next turn; after the last turn, drop it."""
        with self._lock:
            self._taken.discard(turn.id)
            if turn.id and not turn.end:
                self._held[turn.id] = (self._clock(), state)
            elif turn.id:
                self._process_state.remove_session(turn.id)

    def free(self, turn: Turn) -> None:
        """Free a session's state; do nothing if there is none."""
        with self._lock:
            self._held.pop(turn.id, None)
            self._taken.discard(turn.id)
            self._process_state.remove_session(turn.id)

    @contextlib.contextmanager
    def turn(
        self, turn: Turn, begin: Callable[[], S], check: Callable[[S], None] = lambda _: None
    ) -> Iterator[Taken[S]]:
        """Give a block the state for one turn: keep the state when the block ends, free it when it fails.

        A block that a closed generator leaves early (GeneratorExit) counts as failed.

        Args:
            turn: Turn of the request, see :meth:`take`.
            begin: Function that makes the first state.
            check: Function that inspects the state before any work; if it raises, a session that was already
                open stays unchanged.

        Raises:
            InvalidRequest: The session is not open.
            SessionLost: The session was open in a process of the model that ended.
            Overloaded: Too many sessions are open.
        """
        taken = Taken(self.take(turn, begin))
        try:
            check(taken.state)
        except BaseException:
            if turn.start:
                self.free(turn)
            else:
                self.keep(turn, taken.state)
            raise
        try:
            yield taken
        except BaseException:
            self.free(turn)
            raise
        self.keep(turn, taken.state)

    def drop_idle(self) -> None:
        """Free the sessions that have been idle for longer than the limit."""
        oldest = self._clock() - self._idle_s
        with self._lock:
            for key in [key for key, (since, _) in self._held.items() if since < oldest]:
                del self._held[key]
                self._process_state.remove_session(key)

    def close(self) -> None:
        """Free all sessions and end the thread; the sessions are lost."""
        self._closed.set()
        self._sweeper.join()
        with self._lock:
            self._held.clear()

    def _check_room(self) -> None:
        if self.under_way() >= self._limit:
            raise Overloaded(
                f"{self._where}: sessions must be at most {self._limit} at a time, got one more; "
                "try again when one has ended"
            )

    def _found(self, turn: Turn) -> S:
        with self._lock:
            found = self._held.pop(turn.id, None)
        if found is None and self._process_state.has_lost_session(turn.id):
            if turn.end:
                self._process_state.forget_session(turn.id)
            raise SessionLost(
                f"{self._where}: the session was lost: the model's process that held {turn.id!r} ended; try"
                " SEQUENCE_START"
            )
        if found is None:
            raise InvalidRequest(
                f"{self._where}: correlation id must be of a session under way, got {turn.id!r}; "
                f"try SEQUENCE_START (a session ends after {self._idle_s:g} s without a request)"
            )
        return found[1]

    def _sweep(self) -> None:
        while not self._closed.wait(self._idle_s / _SWEEPS_PER_IDLE_TIME):
            self.drop_idle()
