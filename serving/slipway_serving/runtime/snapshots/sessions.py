"""Sessions whose state can be read as a snapshot and restored from one, for the models of any family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import BASE64, Event, as_base64
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.sessions import Sessions, TurnState
from slipway_serving.runtime.snapshots.states import PartialState, SnapshotFormat

S = TypeVar("S")


@dataclass(frozen=True)
class StateContent:
    """Content of a state, from which its snapshot is made.

    Attributes:
        name: Name that no other state has: no other session's, nor the same session's after another turn.
        values: Values of the state that are not arrays, in types of JSON.
        read: Function that returns an array by name.
    """

    name: str
    values: Mapping[str, Any]
    read: Callable[[str], NDArray[Any]]


class RestorableSessions(Generic[S]):
    """Sessions that can be written as snapshots and restored from them.

    Args:
        settings: Settings of the model; its config bounds the sessions.
        create_format: Function that returns the model's :class:`SnapshotFormat`, called at the first need.
        pack: Function that returns the content of a state.
    """

    def __init__(
        self,
        settings: Settings,
        create_format: Callable[[], SnapshotFormat[S]],
        pack: Callable[[S], StateContent],
    ) -> None:
        self._where, self._create_format, self._pack = settings.model, create_format, pack
        self.open_sessions: Sessions[S | PartialState[S]] = Sessions.from_settings(settings)

    @cached_property
    def _format(self) -> SnapshotFormat[S]:
        return self._create_format()

    @contextmanager
    def turn(self, turn: Turn, begin: Callable[[], S], check: Callable[[S], None]) -> Iterator[TurnState[S]]:
        """Take one of the session's own turns; see :meth:`Sessions.turn`.

        Raises:
            InvalidRequest: Parts of the session's state are still missing, or :meth:`Sessions.turn` raises.
            Overloaded: Too many sessions are open.
        """

        def checked(state: S | PartialState[S]) -> None:
            if isinstance(state, PartialState):
                raise InvalidRequest(
                    f"{self._where}: restore must be complete before another turn, got {state.received} of"
                    f" {self._format.parts} parts; try the next part"
                )
            check(state)

        with self.open_sessions.turn(turn, begin, checked) as turn_state:
            yield turn_state  # type: ignore[misc]  # `checked` refuses a PartialState

    def answer(self, request: Request, turn: Turn) -> Event:
        """Answer a :class:`Snapshot` or a :class:`Restore`, which come in place of the session's own turns.

        Raises:
            InvalidRequest: There is no such session or part; the session does not change.
            Overloaded: Too many sessions are open.
        """
        if isinstance(request, Snapshot):
            return self._snapshot_part(request, turn)
        return self._restore_part(request, turn)

    def _snapshot_part(self, request: Snapshot, turn: Turn) -> Event:
        """Return the requested part of the session's state."""
        snapshot_format, number = self._format, request.snapshot_part
        snapshot_format.check(request)

        def refuse() -> S:
            raise InvalidRequest(
                f"{self._where}: snapshot_part must come after the first turn of a session, got it in the"
                " first; try it in a later turn"
            )

        with self.turn(turn, refuse, lambda _: None) as session:
            content = self._pack(session.state)
            part = snapshot_format.part(number, content.name, content.values, content.read)
        text = as_base64(part) if request.output.endswith(BASE64) else part
        return SnapshotPart(text, number, snapshot_format.parts)

    def _restore_part(self, request: Request, turn: Turn) -> Event:
        """Add a part to the session's state, which becomes complete with the last part."""
        assert isinstance(request, Restore)
        part, snapshot_format = request.data, self._format

        def check(state: S | PartialState[S]) -> None:
            if not isinstance(state, PartialState):
                raise InvalidRequest(
                    f"{self._where}: restore must begin a new session, got a part for an open one; try"
                    " another session id for the first part"
                )
            state.check(part)

        self.open_sessions.check_id_is_new(turn)
        partial = PartialState(snapshot_format)
        with self.open_sessions.turn(turn, lambda: partial, check) as session:
            if isinstance(session.state, PartialState):
                partial = session.state
                session.state = partial.add(part) or partial
        return Restored(partial.received, snapshot_format.parts)
