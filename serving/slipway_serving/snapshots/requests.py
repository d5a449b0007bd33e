"""What asks a session for its state, and what brings it: turns in place of the session's own.

A snapshot is asked for part by part and brought part by part, so that neither end holds more than one part
beside the state, however large that is. A session takes these turns where its request says so
(`Request.instead`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving import images
from slipway_serving.events import Event, told
from slipway_serving.fields import Rule
from slipway_serving.requests import Request
from slipway_serving.rules import one_of
from slipway_serving.snapshots.parts import MAGIC

FORMS = ("bytes", "bytes_base64")
"""Forms of a part: as base64 text for protocols that carry text only."""

_NUMBER = Rule(
    "0 or more",
    lambda number: number >= 0,
    lambda _: "0 first",
    "which part of the session's state to give, from 0, in place of a turn",
    flag=None,
)
_PART = Rule(
    "a part of a snapshot",
    lambda part: images.from_text(part).startswith(MAGIC),
    lambda _: "the bytes of a part as it was given",
    "a part of a snapshot, in order and the first with SEQUENCE_START, in place of a turn",
    shown=lambda part: f"{len(part)} bytes that begin with {part[:8]!r}",
    flag=None,
)


@dataclass(frozen=True)
class SnapshotPart(Event):
    """A part of a session's state.

    Attributes:
        snapshot: bytes, or base64 text of them for protocols that carry text only.
        part: which, from 0.
        parts: how many there are.
    """

    known_by: ClassVar[tuple[str, ...]] = ("snapshot",)

    snapshot: Annotated[bytes, told("a part of the session's state, or base64 text of it")]
    part: Annotated[int, told("which part of the state, from 0", "INT32")]
    parts: Annotated[int, told("number of parts of the state", "INT32")]

    @property
    def data(self) -> bytes:
        """The bytes, in whichever form they came."""
        return images.from_text(self.snapshot)


@dataclass(frozen=True)
class Restored(Event):
    """A part of a state was taken; with the last one the session goes on.

    Attributes:
        parts_taken: so far.
        parts: how many there are.
    """

    known_by: ClassVar[tuple[str, ...]] = ("parts_taken",)

    parts_taken: Annotated[int, told("parts of a state that were taken", "INT32")]
    parts: Annotated[int, told("number of parts of the state", "INT32")]


@dataclass(frozen=True)
class Snapshot(Request):
    """Asks for a part of the session's state, which stays as it is.

    Attributes:
        snapshot_part: which, from 0; of one state as long as no other turn came between.
        output: one of :data:`FORMS`.
    """

    model: ClassVar[str] = "snapshot"

    snapshot_part: Annotated[int, _NUMBER]
    output: Annotated[str, one_of(FORMS, "form of the part")] = "bytes"


@dataclass(frozen=True)
class Restore(Request):
    """Brings a part of a session's state; the first, which is part 0, begins the session.

    Attributes:
        restore: bytes, or base64 text of them.
    """

    model: ClassVar[str] = "restore"

    restore: Annotated[bytes, _PART]

    @property
    def data(self) -> bytes:
        """The bytes, in whichever form they came."""
        return images.from_text(self.restore)
