"""Sessions as a stateful model holds them: begun, found, bounded, expired and freed in this one place.

A model keeps one state for each session under way. :meth:`Sessions.take` begins a session or finds its state
and takes it out for the work of one turn, :meth:`Sessions.keep` puts it back or, after the last turn, lets it
go, :meth:`Sessions.free` drops it; :meth:`Sessions.turn` does these around a block. A thread drops sessions
that nobody asked for in a while, so nothing is held for callers who are gone. Which sessions there are is
kept outside of the process too (:mod:`slipway_serving.footprints`): one that died with it is answered as
lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from slipway_serving.errors import InvalidRequest, Overloaded, SessionLost, raise_all
from slipway_serving.footprints import NO_FOOTPRINT, Footprint
from slipway_serving.metrics import SESSIONS_LIMIT, SESSIONS_OPEN
from slipway_serving.program import Settings
from slipway_serving.turns import Turn

S = TypeVar("S")

_SWEEPS_PER_IDLE_TIME = 6


class Taken(Generic[S]):
    """A session's state while one of its turns is worked on.

    Attributes:
        state: what the next turn will find; replace it at will.
    """

    def __init__(self, state: S) -> None:
        self.state = state


class Sessions(Generic[S]):
    """The sessions of a model.

    Args:
        where: the model, for messages.
        limit: how many may be under way.
        idle_s: seconds after which one that nobody goes on with is freed.
        clock: monotonic seconds.
        footprint: of the process.
    """

    def __init__(
        self,
        where: str,
        limit: int,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
        footprint: Footprint = NO_FOOTPRINT,
    ) -> None:
        self._where, self._limit, self._idle_s, self._clock = where, limit, idle_s, clock
        self._footprint = footprint
        self._held: dict[Hashable, tuple[float, S]] = {}
        self._taken: set[Hashable] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name=f"{where}-sessions", daemon=True)
        self._sweeper.start()

    @classmethod
    def of_model(cls, settings: Settings) -> Sessions[S]:
        """Open the sessions of a model, whose config bounds them, and have them counted.

        Raises:
            InvalidRequest: `max_sessions` or `session_idle_s` of the config is no number.
        """
        limit = settings.positive("max_sessions")
        idle_s = settings.positive("session_idle_s")
        sessions: Sessions[S] = cls(settings.model, limit, idle_s, footprint=settings.footprint)
        settings.recorder.follow(SESSIONS_OPEN, sessions.under_way)
        settings.recorder.follow(SESSIONS_LIMIT, lambda: limit)
        return sessions

    def __len__(self) -> int:
        return len(self._held)

    def under_way(self) -> int:
        """Return how many sessions there are: those that wait, and those whose turn is worked on."""
        with self._lock:
            return len(self._held.keys() | self._taken)

    def check(self, turn: Turn, *, fix: str = "") -> None:
        """Check that a request names its session, where it says that it begins or ends one or a fix is given.

        Args:
            turn: the request's.
            fix: what else to do; given by models that take sessions only.

        Raises:
            InvalidRequest: it has no id.
        """
        if turn.id or not (fix or turn.start or turn.end):
            return
        rule = "must be given" if fix else "must be given with SEQUENCE_START and SEQUENCE_END"
        raise_all(self._where, [f"correlation id {rule}, got none" + (f"; try {fix}" if fix else "")])

    def check_new(self, turn: Turn) -> None:
        """Check that a request which begins a session does not meet one of its id that is under way.

        For models whose sessions are worth more than the ease to begin anew under the same id.

        Raises:
            InvalidRequest: there is one, which stays as it is.
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
        """Begin a session or find its state, which is out of the store until it is kept or freed.

        Args:
            turn: one that starts begins anew, and drops what was held under its id; one without an id gets a
                state of its own that is never held.
            begin: makes the first state.

        Raises:
            InvalidRequest: there is no such session.
            SessionLost: there was one, in a process of the model that ended.
            Overloaded: the limit is reached by sessions that are not idle.
        """
        if not turn.id:
            return begin()
        self.drop_idle()
        if turn.start:
            self.free(turn)
            self._check_room()
            state = begin()
            self._footprint.session_began(turn.id)
        else:
            state = self._found(turn)
        with self._lock:
            self._taken.add(turn.id)
        return state

    def keep(self, turn: Turn, state: S) -> None:
        """Keep a session's state for its next turn; nothing is kept after the last one."""
        with self._lock:
            self._taken.discard(turn.id)
            if turn.id and not turn.end:
                self._held[turn.id] = (self._clock(), state)
            elif turn.id:
                self._footprint.session_ended(turn.id)

    def free(self, turn: Turn) -> None:
        """Free a session's state; nothing happens if there is none."""
        with self._lock:
            self._held.pop(turn.id, None)
            self._taken.discard(turn.id)
            self._footprint.session_ended(turn.id)

    @contextlib.contextmanager
    def turn(
        self, turn: Turn, begin: Callable[[], S], check: Callable[[S], None] = lambda _: None
    ) -> Iterator[Taken[S]]:
        """Work on one turn: its state is kept when the block ends, and freed when it fails or is left.

        Args:
            turn: as of :meth:`take`.
            begin: makes the first state.
            check: looks at the state before any work: a session that was under way stays as it is when this
                raises.

        Raises:
            InvalidRequest: there is no such session.
            SessionLost: there was one, in a process of the model that ended.
            Overloaded: too many are under way.
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
        """Free the sessions that were idle for too long."""
        oldest = self._clock() - self._idle_s
        with self._lock:
            for key in [key for key, (since, _) in self._held.items() if since < oldest]:
                del self._held[key]
                self._footprint.session_ended(key)

    def close(self) -> None:
        """Free all sessions, which are lost then, and end the thread."""
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
        if found is None and self._footprint.has_lost(turn.id):
            if turn.end:
                self._footprint.forget(turn.id)
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
