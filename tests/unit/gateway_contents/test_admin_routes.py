"""The routes of trained models in a gateway: only keys that administer it may use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from slipway_gateway.access.keys import Key
from slipway_gateway.access.limits import UNLIMITED
from slipway_gateway.app import create_app
from slipway_gateway.guard import GuardSettings
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.trained_models.admin import admin_router
from slipway_serving.protocol.errors import InvalidRequest

CALLER = Key("key_1", "caller", UNLIMITED, "whsec_AAAA", 0.0, None, None, is_admin=False)
ROUTES = (
    ("GET", "/v1/models/trained"),
    ("GET", "/v1/models/some/onnx-status"),
    ("POST", "/v1/models/some/export-onnx"),
    ("DELETE", "/v1/models/some/onnx"),
)


def application(folder: Path, key: Key) -> FastAPI:
    async def authenticate(_: HTTPConnection) -> Key:
        return key

    settings = GatewaySettings(
        triton=("localhost:8001",), repository=folder / "models", models=folder / "trained"
    )
    guard = GuardSettings(keys_required=True)
    return create_app([admin_router(settings, authenticate)], guard, GatewayMetrics(), "0")


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_admin_route_is_refused_when_the_key_does_not_administer(
    tmp_path: Path, method: str, path: str
) -> None:
    transport = httpx.ASGITransport(application(tmp_path, CALLER))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as api:
        answer = await api.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_required")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_admin_route_answers_when_the_key_administers(tmp_path: Path, method: str, path: str) -> None:
    transport = httpx.ASGITransport(application(tmp_path, replace(CALLER, is_admin=True)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as api:
        answer = await api.request(method, path)
    if path.endswith("/trained"):
        assert (answer.status_code, answer.json()) == (200, [])
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert answer.headers["x-should-retry"] == "false"


def test_admin_routes_are_refused_when_there_is_no_folder_of_models() -> None:
    async def never(_: HTTPConnection) -> Key:
        raise AssertionError

    with pytest.raises(InvalidRequest, match="models and repository must both be given"):
        admin_router(GatewaySettings(triton=("localhost:8001",)), never)
