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
from slipway_serving.runtime.sessions import Sessions, Taken
from slipway_serving.runtime.snapshots.states import Arriving, Snapshots

S = TypeVar("S")


@dataclass(frozen=True)
class Packed:
    """Content of a state, from which its snapshot is made.

    Attributes:
        name: Name that no other state has: no other session's, nor the same session's after another turn.
        told: Values of the state that are not arrays, in types of JSON.
        read: Function that returns an array by name.
    """

    name: str
    told: Mapping[str, Any]
    read: Callable[[str], NDArray[Any]]


class MovableSessions(Generic[S]):
    """Sessions that can be written as snapshots and restored from them.

    Args:
        settings: Settings of the model; its config bounds the sessions.
        snapshots: Function that returns the model's :class:`Snapshots`, called at the first need.
        pack: Function that returns the content of a state.
    """

    def __init__(
        self, settings: Settings, snapshots: Callable[[], Snapshots[S]], pack: Callable[[S], Packed]
    ) -> None:
        self._where, self._make, self._pack = settings.model, snapshots, pack
        self.held: Sessions[S | Arriving[S]] = Sessions.of_model(settings)

    @cached_property
    def _snapshots(self) -> Snapshots[S]:
        return self._make()

    @contextmanager
    def turn(self, turn: Turn, begin: Callable[[], S], check: Callable[[S], None]) -> Iterator[Taken[S]]:
        """Take one of the session's own turns; see :meth:`Sessions.turn`.

        Raises:
            InvalidRequest: Parts of the session's state are still missing, or :meth:`Sessions.turn` raises.
            Overloaded: Too many sessions are open.
        """

        def checked(state: S | Arriving[S]) -> None:
            if isinstance(state, Arriving):
                raise InvalidRequest(
                    f"{self._where}: restore must be complete before another turn, got {state.taken} of"
                    f" {self._snapshots.parts} parts; try the next part"
                )
            check(state)

        with self.held.turn(turn, begin, checked) as taken:
            yield taken  # type: ignore[misc]  # what is arriving was refused

    def answer(self, asked: Request, turn: Turn) -> Event:
        """Answer a :class:`Snapshot` or a :class:`Restore`, which come in place of the session's own turns.

        Raises:
            InvalidRequest: There is no such session or part; the session does not change.
            Overloaded: Too many sessions are open.
        """
        return self._part(asked, turn) if isinstance(asked, Snapshot) else self._restored(asked, turn)

    def _part(self, asked: Snapshot, turn: Turn) -> Event:
        known, number = self._snapshots, asked.snapshot_part
        known.check(asked)

        def unknown() -> S:
            raise InvalidRequest(
                f"{self._where}: snapshot_part must be of a session under way, got SEQUENCE_START"
            )

        with self.turn(turn, unknown, lambda _: None) as session:
            packed = self._pack(session.state)
            part = known.part(number, packed.name, packed.told, packed.read)
        text = as_base64(part) if asked.output.endswith(BASE64) else part
        return SnapshotPart(text, number, known.parts)

    def _restored(self, given: Request, turn: Turn) -> Event:
        assert isinstance(given, Restore)
        part, known = given.data, self._snapshots

        def check(state: S | Arriving[S]) -> None:
            if not isinstance(state, Arriving):
                raise InvalidRequest(
                    f"{self._where}: restore must begin a session, got a part for one under way; try"
                    " SEQUENCE_START with the first part"
                )
            state.check(part)

        self.held.check_new(turn)
        arriving = Arriving(known)
        with self.held.turn(turn, lambda: arriving, check) as session:
            if isinstance(session.state, Arriving):
                arriving = session.state
                session.state = arriving.take(part) or arriving
        return Restored(arriving.taken, known.parts)
