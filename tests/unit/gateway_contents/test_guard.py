"""The guard before every route: names of the server, origins of web pages, and sizes of bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
import websockets
from fastapi import FastAPI, Request, WebSocket

from slipway_gateway.guard import Guard, GuardSettings, host_name
from slipway_serving.protocol.errors import InvalidRequest

HOME = "http://127.0.0.1:8080"
STUDIO = "https://studio.example.org"
EVIL = "https://evil.example.org"
OPEN = GuardSettings(keys_required=False)
KEYED = GuardSettings(keys_required=True, allow_origins=(STUDIO,))


def application(settings: GuardSettings) -> Any:
    app = FastAPI()

    @app.get("/healthz")
    @app.get("/v1/models")
    def models() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/videos")
    async def videos(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @app.post("/v1/parsed")
    async def parsed(body: dict[str, Any]) -> dict[str, Any]:
        return body

    @app.websocket("/v1/listen")
    async def listen(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    return Guard(app, settings)


def client(settings: GuardSettings, base_url: str = HOME) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(application(settings)), base_url=base_url)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "127.9.9.9", "localhost", "LOCALHOST:1", "[::1]:8080", "[::1]"]
)
async def test_guard_accepts_every_name_of_this_machine_when_there_are_no_keys(host: str) -> None:
    async with client(OPEN) as api:
        assert (await api.get("/v1/models", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example.org", "evil.example.org:8080", "127.0.0.1.evil.example.org", "10.0.0.1", "", "[::2]"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/healthz"])
async def test_guard_refuses_another_host_when_there_are_no_keys(host: str, path: str) -> None:
    async with client(OPEN) as api:
        answer = await api.get(path, headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"
    assert answer.headers["x-should-retry"] == "false"


async def test_guard_refuses_other_names_but_not_probes_when_server_names_are_given() -> None:
    async with client(GuardSettings(keys_required=True, server_names=("API.example.org",))) as api:
        for host, path, status in (
            ("api.example.org:443", "/v1/models", 200),
            ("10.1.2.3:8080", "/v1/models", 403),
            ("10.1.2.3:8080", "/healthz", 200),
        ):
            assert (await api.get(path, headers={"host": host})).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
async def test_guard_refuses_pages_of_other_sites_when_there_are_no_keys(headers: dict[str, str]) -> None:
    async with client(OPEN) as api:
        for answer in (
            await api.get("/v1/models", headers=headers),
            await api.post("/v1/videos", headers=headers),
        ):
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "origin_not_allowed"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": HOME},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
async def test_guard_accepts_programs_own_pages_and_links_when_there_are_no_keys(
    headers: dict[str, str],
) -> None:
    async with client(OPEN) as api:
        answer = await api.get("/v1/models", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_guard_answers_preflights_when_the_origin_is_allowed() -> None:
    asked = {
        "Origin": STUDIO,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, X-Stainless-OS, bad\theader",
    }
    async with client(KEYED) as api:
        answer = await api.options("/v1/videos", headers=asked)
        refused = await api.options("/v1/videos", headers={**asked, "Origin": EVIL})
        sent = await api.post("/v1/videos", headers={"Origin": STUDIO}, content=b"abc")
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == STUDIO
    assert answer.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert answer.headers["vary"] == "Origin"
    assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (403, False)
    assert sent.json() == {"bytes": 3}
    assert sent.headers["access-control-allow-origin"] == STUDIO
    assert "openai-poll-after-ms" in sent.headers["access-control-expose-headers"]


async def test_guard_lets_no_page_read_an_answer_when_its_origin_is_not_allowed() -> None:
    async with client(KEYED) as api:
        answer = await api.get("/v1/models", headers={"Origin": EVIL})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 100


LIMITED = GuardSettings(
    keys_required=True, body_bytes=250, body_limits={"/v1/videos": 1000, "/v1/videos/x": 10}
)


@pytest.mark.parametrize(("path", "size", "status"), [
    ("/v1/videos", 1000, 200),
    ("/v1/videos", 1001, 413),
    ("/v1/videos/x", 11, 413),
    ("/v1/parsed", 251, 413),
])  # fmt: skip
async def test_guard_refuses_a_body_by_its_length_when_it_is_above_the_limit_of_the_path(
    path: str, size: int, status: int
) -> None:
    async with client(LIMITED) as api:
        answer = await api.post(path, content=b"x" * size)
    assert answer.status_code == status
    if status == 413:
        assert answer.json()["error"]["code"] == "body_too_large"
        assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(("path", "count", "status"), [
    ("/v1/videos", 10, 200),
    ("/v1/videos", 11, 413),
    ("/v1/parsed", 3, 413),
])  # fmt: skip
async def test_guard_refuses_a_chunked_body_when_more_than_the_limit_was_read(
    path: str, count: int, status: int
) -> None:
    async with client(LIMITED) as api:
        headers = {"content-type": "application/json"}
        answer = await api.post(path, content=pieces(count), headers=headers)
    assert answer.status_code == status
    if status == 413:
        assert answer.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 5000, "٣"])
async def test_guard_refuses_a_length_when_it_is_no_number_or_absurd(length: str) -> None:
    headers = [(b"host", b"127.0.0.1"), (b"content-length", length.encode())]
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/videos", "headers": headers, "query_string": b""}
    await application(OPEN)(scope, receive, send)
    assert sent[0]["status"] in {400, 413}


@pytest.mark.parametrize("origin", ["studio.example.org", "https://", "https://a/b", "*", "ftp://a", "null"])
def test_settings_are_refused_when_an_origin_is_malformed(origin: str) -> None:
    with pytest.raises(InvalidRequest, match="allow_origin must be"):
        GuardSettings(keys_required=False, allow_origins=(origin,))


def test_settings_are_refused_when_a_server_name_is_a_url() -> None:
    with pytest.raises(InvalidRequest, match="server_name must be"):
        GuardSettings(keys_required=True, server_names=("https://a",))


def test_host_name_is_found_when_there_is_a_port_or_an_ipv6_address() -> None:
    assert [host_name(host) for host in ("A:1", "a", "[::1]:80", "[::1]")] == ["a", "a", "::1", "::1"]


@asynccontextmanager
async def served(settings: GuardSettings) -> AsyncIterator[str]:
    """Serve the application by uvicorn, and yield its address."""
    server = uvicorn.Server(uvicorn.Config(application(settings), port=0, log_level="error"))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(30):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture(params=[OPEN, KEYED], ids=["open", "keyed"])
def settings(request: pytest.FixtureRequest) -> Iterator[GuardSettings]:
    yield request.param


async def test_guard_refuses_sockets_of_other_pages_when_a_real_server_runs_it(
    settings: GuardSettings,
) -> None:
    async with served(settings) as address:
        for origin in (None, f"http://{address}"):
            async with websockets.connect(f"ws://{address}/v1/listen", origin=origin) as socket:  # type: ignore[arg-type]
                assert await socket.recv() == "hello"
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with websockets.connect(f"ws://{address}/v1/listen", origin=EVIL):  # type: ignore[arg-type]
                pass
        assert refused.value.response.status_code == 403
        async with httpx.AsyncClient(trust_env=False) as api:
            answer = await api.post(f"http://{address}/v1/parsed", content=pieces(1000))
        assert answer.status_code == 413
