"""Bodies of requests: what a caller may send to `POST /v1/videos`, and what is refused before any work."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Request

from slipway_gateway.app import create_app
from slipway_gateway.guard import GuardSettings
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.routes.bodies import read_fields

LARGEST_BYTES = 1 << 20
JSON = {"content-type": "application/json"}


async def answer(**request: Any) -> httpx.Response:
    """Send a body to a route that answers with its fields."""
    routes = APIRouter()

    @routes.post("/fields")
    async def fields(request: Request) -> dict[str, str]:
        found = await read_fields(request, "videos", LARGEST_BYTES)
        return {name: repr(value) for name, value in found.items()}

    guard = GuardSettings(keys_required=True, body_bytes=LARGEST_BYTES)
    app = create_app([routes], guard, GatewayMetrics(), "0")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.post("/fields", **request)


async def test_fields_and_file_are_read_when_the_body_is_a_form() -> None:
    found = await answer(data={"prompt": "a", "extra_body[seed]": "3"}, files={"input_reference": b"picture"})
    assert found.json() == {"prompt": "'a'", "seed": "'3'", "input_reference": "b'picture'"}


@pytest.mark.parametrize(
    ("request_body", "said"),
    [
        ({"files": [("input_reference", (f"{n}.png", b"x")) for n in range(5)]}, "Too many files"),
        ({"data": {f"f{n}": "1" for n in range(201)}, "files": {"a": b""}}, "Too many fields"),
        ({"content": "&".join(f"f{n}=1" for n in range(201)).encode(), "headers": {
            "content-type": "application/x-www-form-urlencoded"}}, "Too many fields"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, "boundary"),
        ({"content": b"[" * 400_000, "headers": JSON}, "must be a JSON object"),
        ({"content": b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "headers": JSON}, "must be a JSON object"),
        ({"json": {"extra_body": "[" * 100_000}}, "extra_body must be an object"),
        ({"content": b"\xff\xfe", "headers": JSON}, "must be a JSON object"),
    ],
)  # fmt: skip
async def test_body_is_refused_when_it_is_a_bomb_or_damaged(request_body: dict[str, Any], said: str) -> None:
    found = await answer(**request_body)
    error = found.json()["error"]
    assert (found.status_code, error["code"]) == (400, "invalid_value"), found.text
    assert error["param"] in ("body", "extra_body")
    assert said in error["message"]
    assert len(found.content) < 2000


async def test_body_is_refused_when_it_is_above_the_limit() -> None:
    found = await answer(files={"input_reference": b"x" * LARGEST_BYTES})
    assert (found.status_code, found.json()["error"]["code"]) == (413, "body_too_large")
