"""Requests that read a session's state and restore it; a session takes them in place of its own turns.

The client requests and restores a snapshot part by part, so that neither end holds more than one part beside
the state, however large the state is. A session takes these turns if its request class allows them
(`Request.turn_alternatives`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from slipway_serving.protocol import images
from slipway_serving.protocol.events import Event, output_field
from slipway_serving.protocol.fields import Rule
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import one_of
from slipway_serving.protocol.snapshots.parts import MAGIC

SNAPSHOT_FIELD = "snapshot_part"
"""Field by which a model knows a turn that reads the state of its session."""
FORMS = ("bytes", "bytes_base64")
"""Forms of a part: bytes, or base64 text for protocols that carry text only."""

_NUMBER = Rule(
    "0 or more",
    lambda number: number >= 0,
    lambda _: "0 for the first part",
    "number of the requested part of the session's state, from 0; sent in place of a turn",
    flag=None,
)
_PART = Rule(
    "a part of a snapshot",
    lambda part: images.decode_if_base64(part).startswith(MAGIC),
    lambda _: "the unchanged bytes of a part",
    "part of a snapshot, in order; the first part begins the session; sent in place of a turn",
    format_value=lambda part: f"{len(part)} bytes that begin with {part[:8]!r}",
    flag=None,
)


@dataclass(frozen=True)
class SnapshotPart(Event):
    """A part of a session's state.

    Attributes:
        snapshot: Bytes of the part, or base64 text of them for protocols that carry text only.
        part: Number of the part, from 0.
        parts: Number of parts of the state.
    """

    known_by: ClassVar[tuple[str, ...]] = ("snapshot",)

    snapshot: Annotated[bytes, output_field("bytes of a part of the session's state, or base64 text of them")]
    part: Annotated[int, output_field("number of the part, from 0", "INT32")]
    parts: Annotated[int, output_field("number of parts of the state", "INT32")]

    @property
    def data(self) -> bytes:
        """Bytes of the part, decoded if it came as base64 text."""
        return images.decode_if_base64(self.snapshot)


@dataclass(frozen=True)
class Restored(Event):
    """Response to a part that the session took; after the last part the session goes on.

    Attributes:
        parts_taken: Number of parts that the session has taken so far.
        parts: Number of parts of the state.
    """

    known_by: ClassVar[tuple[str, ...]] = ("parts_taken",)

    parts_taken: Annotated[int, output_field("number of parts received so far", "INT32")]
    parts: Annotated[int, output_field("number of parts of the state", "INT32")]


@dataclass(frozen=True)
class Snapshot(Request):
    """Request for a part of the session's state; it does not change the state.

    Attributes:
        snapshot_part: Number of the part, from 0. The parts belong to one state unless another turn came
            between.
        output: Form of the part, one of :data:`FORMS`.
    """

    model: ClassVar[str] = "snapshot"

    snapshot_part: Annotated[int, _NUMBER]
    output: Annotated[str, one_of(FORMS, "form of the part")] = "bytes"


@dataclass(frozen=True)
class Restore(Request):
    """Request that restores a part of a session's state; the first one, part 0, begins the session.

    Attributes:
        restore: Bytes of the part, or base64 text of them.
    """

    model: ClassVar[str] = "restore"

    restore: Annotated[bytes, _PART]

    @property
    def data(self) -> bytes:
        """Bytes of the part, decoded if it came as base64 text."""
        return images.decode_if_base64(self.restore)
