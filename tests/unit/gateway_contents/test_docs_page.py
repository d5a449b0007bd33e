"""The page that documents the API: its parts come from this server, and nothing else may be loaded."""

from __future__ import annotations

import re

import httpx
import pytest
from fastapi import FastAPI

from slipway_gateway.routes.docs import router


@pytest.fixture
def api() -> httpx.AsyncClient:
    app = FastAPI(docs_url=None)
    app.include_router(router())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def test_page_loads_only_files_of_this_server_when_it_is_opened(api: httpx.AsyncClient) -> None:
    page = await api.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?://|//[a-z]", page.text)
    sources = re.findall(r'(?:src|href)="(/[^"]*)"', page.text)
    assert len(sources) == 4
    for source in sources:
        answer = await api.get(source)
        assert answer.status_code == 200
        kind = "text/css" if source.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_page_has_no_script_inside_when_its_policy_allows_only_files(api: httpx.AsyncClient) -> None:
    page = await api.get("/docs")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == (
        "'none'",
        "'self'",
        "'self'",
    )
    assert policy["frame-ancestors"] == "'none'"
    assert not re.search(r"<script(?![^>]*src=)|\son[a-z]+=|javascript:", page.text)


async def test_own_script_asks_no_other_server_when_it_starts(api: httpx.AsyncClient) -> None:
    script = (await api.get("/docs/assets/start.js")).text
    assert "validatorUrl: null" in script
    assert "://" not in script


@pytest.mark.parametrize(
    "name", ["swagger-ui.js", "oauth2-redirect.html", "..%2Fdocs.py", "%2e%2e/docs.py", "start.js%00", ""]
)
async def test_asset_is_not_found_when_the_page_does_not_need_it(api: httpx.AsyncClient, name: str) -> None:
    try:
        answer = await api.get(f"/docs/assets/{name}")
    except Exception as error:  # noqa: BLE001 - the application here has no handler of errors
        assert getattr(error, "status", None) == 404
    else:
        assert answer.status_code == 404
