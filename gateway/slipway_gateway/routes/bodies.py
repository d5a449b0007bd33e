"""Bodies of requests: a form or a JSON document as one mapping of fields, with the picture as bytes.

A form may be multipart or URL-encoded. A picture is a file of a form, a data URL, or the URL of a public
server, also as an object with ``image_url``.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from slipway_gateway.errors import ApiError
from slipway_gateway.fields.kinds import PICTURE
from slipway_gateway.fields.parsing import flatten, nested_form
from slipway_gateway.outbound.fetch import fetch_public
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.texts import short

JSON, FORM, URL_ENCODED = "application/json", "multipart/form-data", "application/x-www-form-urlencoded"
_MOST_FIELDS = 200
_FETCH_S = 20.0


async def read_fields(request: Request, where: str, largest_bytes: int) -> dict[str, Any]:
    """Return the fields of a request's body; files of a form are bytes.

    Args:
        request: HTTP request.
        where: Name of the route, for messages.
        largest_bytes: Largest body, in bytes.

    Raises:
        ApiError: The body is neither a form nor JSON.
        InvalidRequest: The body cannot be read.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in {FORM, URL_ENCODED}:
        return flatten(await _form(request, where, largest_bytes), where)
    if kind != JSON:
        raise ApiError(
            f"{where}: content-type must be {JSON} or {FORM}, got {short(kind) if kind else 'none'};"
            f" try {JSON}",
            status=415,
            code="unsupported_media_type",
            final=True,
        )
    return flatten(await read_json(request, where), where)


async def read_json(request: Request, where: str) -> dict[str, Any]:
    """Return the JSON object in a request's body; an empty body is an empty object.

    Raises:
        InvalidRequest: The body is no JSON object.
    """
    body = await request.body()
    if not body.strip():
        return {}
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}: body must be a JSON object, got no JSON ({error})") from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"{where}: body must be a JSON object, got {short(document)}")
    return document


async def _form(request: Request, where: str, largest_bytes: int) -> dict[str, Any]:
    try:
        async with request.form(max_files=4, max_fields=_MOST_FIELDS, max_part_size=largest_bytes) as form:
            items = [
                (name, await value.read() if isinstance(value, UploadFile) else value)
                for name, value in form.multi_items()
            ]
    except HTTPException as error:
        raise InvalidRequest(
            f"{where}: body must be a whole form, got another one ({error.detail})"
        ) from None
    except (ValueError, KeyError, UnicodeError) as error:
        raise InvalidRequest(f"{where}: body must be a form, got another one ({error})") from None
    return nested_form(items, where)


async def read_picture(value: Any, largest_bytes: int, field: str = PICTURE, *, allow_private: bool) -> Any:
    """Return the bytes of a picture that a caller gives in any form; another value is returned unchanged.

    Args:
        value: Bytes, a data URL, an http(s) URL, or an object with one of them.
        largest_bytes: Largest size of the picture's file.
        field: Name of the field, for errors.
        allow_private: True if the URL may lead to a private address.

    Raises:
        InvalidRequest: The picture cannot be fetched or decoded.
    """
    if isinstance(value, Mapping):
        value = value.get("image_url", value.get("url"))
        if isinstance(value, Mapping):
            value = value.get("url")
    if not isinstance(value, str):
        return value
    if value.startswith(("http://", "https://")):
        fetched = await fetch_public(
            value, max_bytes=largest_bytes, timeout_s=_FETCH_S, allow_private=allow_private, field=field
        )
        return fetched.data
    return _decoded(value, field)


def _decoded(text: str, field: str) -> bytes:
    """Return the bytes of a data URL or of base64 text."""
    head, comma, content = text.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise InvalidRequest(
            f"videos: {field} must be a file, an http(s) URL or a data URL with base64, got {short(text)};"
            " try data:image/png;base64,…"
        )
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"videos: {field} must have valid base64 text, got {error}") from None
