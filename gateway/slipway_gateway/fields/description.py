"""Description of fields for programs: OpenAPI properties, and what a form needs to show a field."""

from __future__ import annotations

from typing import Any

from slipway_client.served_model import ServedModel
from slipway_gateway.fields.kinds import PICTURE, SECONDS, SIDES, SIZE, VideoKind
from slipway_serving.protocol.fields import Array, Field, Image, Rule

_TYPES: dict[type[Any], str] = {str: "string", int: "integer", float: "number", bool: "boolean"}

PICTURE_FORMS: list[dict[str, Any]] = [{"type": "string"}, {"type": "object"}]
"""Forms of a picture in a JSON document."""
PUBLIC_FIELDS: dict[str, Any] = {
    "model": {
        "type": "string",
        "description": "Served model; by default the one that fits the other fields.",
    },
    SECONDS: {
        "anyOf": [{"type": "string"}, {"type": "number"}],
        "description": "Length of the video, in seconds; it becomes the next allowed number of frames.",
    },
    SIZE: {"type": "string", "description": "Width and height in pixels, for example 832x480."},
    "num_frames": {"type": "integer", "description": "Another name of frames."},
    "num_inference_steps": {"type": "integer", "description": "Another name of steps."},
    PICTURE: {
        "anyOf": PICTURE_FORMS,
        "description": "Picture: a file of a form, an http(s) URL, a data URL, or an object with image_url.",
    },
    "webhook_url": {"type": "string", "description": "URL that is called when the job has ended."},
    "user": {"type": "string", "description": "Name of the caller's user; it is ignored."},
}
"""Fields that the API has besides those of the request classes."""


def property_of(field: Field) -> dict[str, Any]:
    """Return the OpenAPI property of a field."""
    if isinstance(field.rule, Array):
        return {"type": "array", "items": {}, "description": _sentence(field)}
    if isinstance(field.rule, Image):
        return {"anyOf": PICTURE_FORMS, "description": _sentence(field)}
    found: dict[str, Any] = {"type": _TYPES.get(field.kind, "string"), "description": _sentence(field)}
    choices = choices_of(field)
    if choices:
        found["enum"] = choices
    return found


def choices_of(field: Field) -> list[str]:
    """Return the values that a text field allows; an empty list if it allows any text."""
    must = field.rule.must if isinstance(field.rule, Rule) else ""
    return must.removeprefix("one of ").split(", ") if must.startswith("one of ") else []


def model_description(kind: VideoKind, served: ServedModel) -> dict[str, Any]:
    """Return what a form needs to ask for a video of a model: its fields in their order.

    Args:
        kind: Kind of the video.
        served: Usual values and ranges of the served model.
    """
    fields = [
        _described(kind, field, served)
        for name, field in kind.fields.items()
        if name not in kind.pictures or kind.pictures[name].range(served) != (0, 0)
    ]
    return {
        "summary": kind.summary,
        "note": served.note,
        "family": kind.family,
        "can_stop": kind.can_stop,
        "takes_size": kind.has_sides,
        "fields": fields,
    }


def _described(kind: VideoKind, field: Field, served: ServedModel) -> dict[str, Any]:
    default = served.usual.get(field.name, field.default)
    picture = kind.pictures.get(field.name)
    found: dict[str, Any] = {
        "name": kind.public_name(field.name),
        "type": "picture" if picture else property_of(field)["type"],
        "required": not field.optional or (picture is not None and picture.range(served) == (1, 1)),
        "rule": field.rule.must,
        "help": field.rule.help,
        "default": default if isinstance(default, str | int | float | bool) else None,
    }
    if isinstance(field.rule, Rule) and field.rule.default:
        found["default_text"] = field.rule.default
    if choices := choices_of(field):
        found["choices"] = choices
    if words := served.words.get(field.name):
        found["known_words"] = words
    if field.name in served.ranges and picture is None:
        found["minimum"], found["maximum"] = served.ranges[field.name]
    if field.name in served.examples:
        found["example"] = served.examples[field.name]
    if field.name in (*SIDES, "fps", "timeout_s"):
        found["unit"] = {"fps": "1/s", "timeout_s": "s"}.get(field.name, "px")
    return found


def _sentence(field: Field) -> str:
    if isinstance(field.rule, Image):
        return f"{field.rule.help}; {field.rule.must}"
    must = f", {field.rule.must}" if field.rule.must and field.rule.must not in field.rule.help else ""
    return f"{field.rule.help}{must}."
