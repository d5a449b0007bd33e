"""Descriptions of bodies and errors for OpenAPI, generated from the request classes of all families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipway_gateway.fields.description import PICTURE_FORMS, PUBLIC_FIELDS, property_of
from slipway_gateway.fields.kinds import PICTURE, VideoKind
from slipway_gateway.fields.parsing import NESTED
from slipway_gateway.fields.resuming import changeable_fields
from slipway_gateway.routes.answers import ErrorAnswer
from slipway_gateway.routes.bodies import FORM, JSON, URL_ENCODED

_TEXTS = {
    400: "A field breaks its rule.",
    401: "The key is missing, unknown or revoked.",
    403: "The host or the origin of the request is not allowed.",
    404: "There is no such thing, or it belongs to another key.",
    405: "The route has no such method.",
    409: "The state of the job does not allow this.",
    413: "The body is too large.",
    415: "The body has another type.",
    416: "The range is beyond the end of the content.",
    422: "The server refused the request.",
    429: "The queue is full, or a limit of the key is reached.",
    499: "The caller left.",
    500: "The job failed.",
    503: "No server or database answers at the moment.",
    504: "The job is not finished within the time limit.",
}
_ALWAYS = (401, 403, 503)
BEFORE = "before"
"""Field of an edit that is the place in the queue."""
_BEFORE_TEXT = (
    "Id of the waiting video of the same key and priority that comes next in the queue. Null, or an empty"
    " text in a form, is the end of the queue."
)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of the errors of a route, and of those that every route may answer."""
    return {
        status: {"model": ErrorAnswer, "description": _TEXTS[status]}
        for status in sorted({*statuses, *_ALWAYS})
    }


def creation_body(kinds: Mapping[str, VideoKind]) -> dict[str, Any]:
    """Return the description of the body that creates a video."""
    properties = _properties(kinds, (name for kind in kinds.values() for name in kind.fields))
    return _body({**properties, **PUBLIC_FIELDS}, (JSON, FORM, URL_ENCODED), required=True)


def remix_body(kinds: Mapping[str, VideoKind]) -> dict[str, Any]:
    """Return the description of the body that varies a video."""
    return creation_body(kinds)


def edit_body(kinds: Mapping[str, VideoKind]) -> dict[str, Any]:
    """Return the description of the body that edits a waiting video."""
    described = duplicate_body(kinds)
    described["requestBody"]["required"] = True
    for content in described["requestBody"]["content"].values():
        properties = content["schema"]["properties"]
        for name in ("model", "user"):
            properties.pop(name, None)
        properties[BEFORE] = {"type": ["string", "null"], "description": _BEFORE_TEXT}
    return described


def duplicate_body(kinds: Mapping[str, VideoKind]) -> dict[str, Any]:
    """Return the description of the body that duplicates a video."""
    described = creation_body(kinds)
    described["requestBody"]["required"] = False
    schema = described["requestBody"]["content"][JSON]["schema"]
    schema["properties"] = {
        name: each if name in NESTED else _nullable(each) for name, each in schema["properties"].items()
    }
    return described


def _nullable(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the property of a field that null gives its usual value."""
    found = dict(described)
    if "anyOf" in found:
        found["anyOf"] = [*found["anyOf"], {"type": "null"}]
    else:
        found["type"] = [found["type"], "null"]
    if "enum" in found:
        found["enum"] = [*found["enum"], None]
    return found


def resume_body(kinds: Mapping[str, VideoKind]) -> dict[str, Any]:
    """Return the description of the body that resumes a video."""
    names = (name for kind in kinds.values() for name in changeable_fields(kind))
    return _body(_properties(kinds, names), (JSON,), required=False)


def _properties(kinds: Mapping[str, VideoKind], names: Iterable[str]) -> dict[str, Any]:
    """Return the properties of fields; fields of one name in several kinds have the first one's type."""
    found: dict[str, Any] = {}
    wanted = set(names)
    for kind in kinds.values():
        for name, field in kind.fields.items():
            if name not in wanted or kind.public_name(name) == PICTURE:
                continue
            described = property_of(field)
            if name not in found:
                found[name] = {**described, "description": f"{kind.model}: {described['description']}"}
            elif described["description"] not in found[name]["description"]:
                found[name]["description"] += f" {kind.model}: {described['description']}"
            else:
                found[name]["description"] = found[name]["description"].replace(": ", f", {kind.model}: ", 1)
    return found


def _body(properties: dict[str, Any], types: tuple[str, ...], *, required: bool) -> dict[str, Any]:
    content = {}
    for kind in types:
        own = dict(properties)
        for name in [name for name, each in own.items() if each.get("anyOf") is PICTURE_FORMS]:
            picture = own.pop(name)
            if kind == FORM:
                own[name] = {"type": "string", "format": "binary", "description": picture["description"]}
            elif kind == JSON:
                own[name] = picture
        nested = {
            name: {"type": "object" if kind == JSON else "string", "description": "Any of the other fields."}
            for name in NESTED
            if PICTURE in properties
        }
        content[kind] = {
            "schema": {"type": "object", "additionalProperties": False, "properties": {**own, **nested}}
        }
    return {"requestBody": {"required": required, "content": content}}
