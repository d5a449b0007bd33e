"""The turns by which a model's sessions give their states and begin from them, for a model of any family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from slipway_serving.errors import InvalidRequest
from slipway_serving.events import BASE64, Event, as_base64
from slipway_serving.program import Settings
from slipway_serving.requests import Request
from slipway_serving.sessions import Sessions, Taken
from slipway_serving.snapshots.requests import Restore, Restored, Snapshot, SnapshotPart
from slipway_serving.snapshots.states import Arriving, Snapshots
from slipway_serving.turns import Turn

S = TypeVar("S")


@dataclass(frozen=True)
class Packed:
    """What a state is put into parts from.

    Attributes:
        name: that this state has alone: no other session's, nor the same session's after a turn.
        told: what of it is no array; as JSON has it.
        read: returns an array by name.
    """

    name: str
    told: Mapping[str, Any]
    read: Callable[[str], NDArray[Any]]


class MovableSessions(Generic[S]):
    """Sessions that can be put into parts and begun from them.

    Args:
        settings: of the model, whose config bounds the sessions.
        snapshots: makes what puts states into parts; called when that is first asked for.
        pack: tells of a state what is put into parts.
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
        """Work on one of the session's own turns; see :meth:`Sessions.turn`.

        Raises:
            InvalidRequest: parts of its state are missing yet, and as there.
            Overloaded: too many are under way.
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
        """Answer a turn that came in place of the session's own: a :class:`Snapshot` or a :class:`Restore`.

        Raises:
            InvalidRequest: there is no such session or part; the session stays as it is.
            Overloaded: too many are under way.
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
