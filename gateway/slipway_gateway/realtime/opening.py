"""What a viewer asks for with `session.start`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipway_gateway.realtime.channel import Message
from slipway_gateway.realtime.values import build, decode_picture, parse, picture_field
from slipway_gateway.realtime.world_kinds import (
    FORMATS,
    FPS,
    OUTPUT,
    Format,
    formats_of,
    has_field,
    world_kind,
)
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import fields_of
from slipway_serving.protocol.requests import USUAL_PARAMETER, Request
from slipway_serving.protocol.texts import short

CONTINUOUS, ON_EVENT = "continuous", "on_event"
USUAL_FPS = 25
"""Frames per second of a world whose viewer and whose served model name no rate."""
LARGEST_STATE_BYTES = 16 << 30
_WHERE = "session.start"
_OWN = ("type", "model", "format", "pacing", "state", "input_reference")


@dataclass(frozen=True, eq=False)
class Opening:
    """World that a viewer asks for.

    Attributes:
        kind: Class of the request that opens it.
        model: Name of the served model.
        format: Format of its chunks.
        fps: Frames per second.
        on_event: True if each interaction makes one block, False if blocks follow each other at the rate.
        request: Request that opens it; None if it goes on from a state.
        state_bytes: Size of the state that follows in binary messages; None if there is none.
    """

    kind: type[Request]
    model: str
    format: Format
    fps: int
    on_event: bool
    request: Request | None
    state_bytes: int | None


def model_of(message: Message) -> str:
    """Return the model of a `session.start` message.

    Raises:
        InvalidRequest: The model is not a world.
    """
    return world_kind(message.get("model"), _WHERE).model


def parse_start(message: Message, parameters: dict[str, str]) -> Opening:
    """Parse a `session.start` message.

    Args:
        message: Message.
        parameters: Parameters of the served model's configuration.

    Raises:
        InvalidRequest: A field breaks its rule.
    """
    kind = world_kind(message.get("model"), _WHERE)
    chosen = _format(message, kind)
    pacing = message.get("pacing", CONTINUOUS)
    if pacing not in (CONTINUOUS, ON_EVENT):
        raise InvalidRequest(f"{_WHERE}: pacing must be {CONTINUOUS} or {ON_EVENT}, got {short(pacing)}")
    values = {name: value for name, value in message.items() if name not in _OWN}
    if "state" in message:
        if values or "input_reference" in message:
            given = ", ".join([*values, *(["input_reference"] if "input_reference" in message else [])])
            raise InvalidRequest(f"{_WHERE}: {given} must be left out with state, got both; try state alone")
        return Opening(
            kind, kind.model, chosen, USUAL_FPS, pacing == ON_EVENT, None, _state_bytes(message["state"])
        )
    if not has_field(kind, FPS):
        rate = values.pop(FPS, USUAL_FPS)
        if type(rate) is not int or not 1 <= rate <= 240:
            raise InvalidRequest(f"{_WHERE}: fps must be 1 to 240, got {short(rate)}; try {USUAL_FPS}")
    found = parse(kind, values, _WHERE, set_here=(OUTPUT,))
    _add_picture(message, kind, found)
    if has_field(kind, FPS):
        usual = _usual_values(kind, parameters).get(FPS, USUAL_FPS)
        rate = found.get(FPS) or usual
        found[FPS] = rate
    request = build(kind, found | {OUTPUT: chosen.output}, _WHERE)
    return Opening(kind, kind.model, chosen, rate, pacing == ON_EVENT, request, None)


def _format(message: Message, kind: type[Request]) -> Format:
    formats = formats_of(kind)
    name = message.get("format", formats[0].name)
    chosen = FORMATS.get(name) if isinstance(name, str) else None
    if chosen not in formats or chosen is None:
        names = " or ".join(each.name for each in formats)
        raise InvalidRequest(f"{_WHERE}: format must be {names}, got {short(name)}")
    return chosen


def _add_picture(message: Message, kind: type[Request], found: dict[str, Any]) -> None:
    """Take `input_reference` for the request's picture."""
    if "input_reference" not in message:
        return
    name = picture_field(kind)
    if name is None or name in found:
        raise InvalidRequest(
            f"{_WHERE}: input_reference must be left out"
            + (f" with {name}, got both" if name else ", since the model takes no picture")
        )
    try:
        found[name] = decode_picture(message["input_reference"])
    except ValueError as error:
        raise InvalidRequest(f"{_WHERE}: input_reference must be {error}") from None


def _state_bytes(state: Any) -> int:
    size = state.get("byte_length") if isinstance(state, dict) else None
    if type(size) is not int or not 1 <= size <= LARGEST_STATE_BYTES:
        raise InvalidRequest(
            f"{_WHERE}: state must be an object with the byte_length of the file that follows, 1 to"
            f" {LARGEST_STATE_BYTES}, got {short(state)}"
        )
    return size


def _usual_values(kind: type[Request], parameters: dict[str, str]) -> dict[str, int]:
    """Return the usual values of whole-number fields that the served model's configuration names."""
    found = {}
    for field in fields_of(kind):
        text = parameters.get(f"{USUAL_PARAMETER}{field.name}", "")
        if field.kind is int and text.isascii() and text.isdigit():
            found[field.name] = int(text)
    return found
