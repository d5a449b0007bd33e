"""Request classes that open worlds, found among the families: nothing here names one.

A world is a session whose answers contain fragments of an MP4 file or JPEG files, and whose request has a
field `output` that asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from slipway_export.families import families
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.fields import Rule, fields_of
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.snapshots.requests import Restore, Snapshot
from slipway_serving.protocol.texts import short
from slipway_serving.video.fragments import Mp4Fragment
from slipway_serving.video.jpeg import JpegFrame

OUTPUT, FPS, SEED, REBASE = "output", "fps", "seed", "rebase"


@dataclass(frozen=True)
class Format:
    """Form in which a viewer receives a world.

    Attributes:
        name: Name in messages.
        output: Value of the request's field `output`.
        event: Class of the events that carry it.
        mime: Type of the binary messages.
    """

    name: str
    output: str
    event: type[Event]
    mime: str


FORMATS = {
    each.name: each
    for each in (
        Format("m4s", "mp4", Mp4Fragment, "video/mp4"),
        Format("jpeg", "jpeg", JpegFrame, "image/jpeg"),
    )
}


def formats_of(kind: type[Request]) -> tuple[Format, ...]:
    """Return the formats in which a request class can answer; none if it opens no world."""
    rule = next((field.rule for field in fields_of(kind) if field.name == OUTPUT), None)
    if kind.turn is None or not isinstance(rule, Rule):
        return ()
    return tuple(each for each in FORMATS.values() if each.event in kind.events and rule.accepts(each.output))


@cache
def world_kinds() -> dict[str, type[Request]]:
    """Return the request classes that open worlds, by model."""
    return {kind.model: kind for family in families() for kind in family.requests if formats_of(kind)}


def world_kind(model: object, where: str) -> type[Request]:
    """Return the request class of a model.

    Raises:
        InvalidRequest: The model is not the name of a world.
    """
    found = world_kinds().get(model) if isinstance(model, str) else None
    if found is None:
        names = ", ".join(sorted(world_kinds()))
        raise InvalidRequest(f"{where}: model must be a world, got {short(model)}; try one of {names}")
    return found


def can_move(kind: type[Request]) -> bool:
    """Return True if the sessions of a request class have snapshots, from which another replica goes on."""
    return {Snapshot, Restore} <= set(kind.turn_alternatives)


def has_rebase(kind: type[Request]) -> bool:
    """Return True if a turn can continue a world beyond its end."""
    return kind.turn is not None and any(field.name == REBASE for field in fields_of(kind.turn))


def has_field(kind: type[Request], name: str) -> bool:
    """Return True if a request class has a field."""
    return any(field.name == name for field in fields_of(kind))
