"""The files of the studio: the page loads nothing but them, and a browser may use nothing else."""

from __future__ import annotations

import gzip
import re
from importlib.metadata import EntryPoint
from pathlib import Path, PurePosixPath

import httpx
import pytest
from fastapi import FastAPI

from slipway_gateway.studio import routes
from slipway_gateway.studio.routes import added_assets, assets, router

MOST_BYTES = 300_000
SCRIPTS = sorted(path for path in assets() if path.endswith(".js"))


@pytest.fixture
def studio() -> httpx.AsyncClient:
    app = FastAPI(docs_url=None)
    app.include_router(router())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080")


async def test_page_loads_only_files_of_this_server_when_it_is_opened(studio: httpx.AsyncClient) -> None:
    page = await studio.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.search(r"https?://", page.text)
    sources = re.findall(r'(?:src|href)="(/[^"]*)"', page.text)
    assert len(sources) > 2
    for source in sources:
        answer = await studio.get(source)
        assert answer.status_code == 200, source
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_page_has_no_script_and_no_style_inside_when_its_policy_allows_only_files(
    studio: httpx.AsyncClient,
) -> None:
    page = await studio.get("/")
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == (
        "'none'",
        "'self'",
        "'self'",
    )
    assert policy["connect-src"] == "'self' ws://127.0.0.1:8080 wss://127.0.0.1:8080"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.search(r"<script(?![^>]*src=)|<style|\son[a-z]+=|\sstyle=|javascript:", page.text)


async def test_policy_keeps_a_host_out_when_it_would_add_a_source(studio: httpx.AsyncClient) -> None:
    for host in ("a b", "a; script-src *", "*", "a'", "[x]"):
        page = await studio.get("/", headers={"host": host})
        assert page.headers["content-security-policy"].endswith("connect-src 'self'"), host


@pytest.mark.parametrize("path", SCRIPTS)
def test_imports_of_a_module_exist_when_a_browser_follows_them(path: str) -> None:
    text = assets()[path].read_text(encoding="utf-8")
    here = PurePosixPath(path).parent
    for name in re.findall(r'^(?:import|export)\b[^;]*?from "([^"]+)";', text, re.MULTILINE | re.DOTALL):
        parts: list[str] = []
        for part in (here / name).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        assert "/".join(parts) in assets(), f"{path} imports {name}"


@pytest.mark.parametrize("path", SCRIPTS)
def test_module_makes_no_markup_from_texts_and_asks_no_other_server(path: str) -> None:
    text = assets()[path].read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    if path != "api.js":
        assert not re.search(r"\bfetch\(|new WebSocket\(|XMLHttpRequest|EventSource", text)


def test_files_stay_small_when_they_are_counted_together() -> None:
    # No module imports the types, so no browser loads them.
    loaded = {path: file.read_bytes() for path, file in assets().items() if path != "types.js"}
    total, sent = (sum(map(len, each)) for each in (loaded.values(), map(gzip.compress, loaded.values())))
    print(f"{total} bytes in {len(loaded)} files, compressed {sent}")
    assert total <= MOST_BYTES
    # Every text is in one file.
    long = [path for path in SCRIPTS if loaded.get(path, b"").count(b"\n") > 350 and path != "texts.js"]
    assert long == []


async def test_file_is_compressed_when_the_browser_takes_that(studio: httpx.AsyncClient) -> None:
    answers = [
        await studio.get("/studio/main.js", headers={"accept-encoding": kind})
        for kind in ("gzip", "identity")
    ]
    assert [each.headers.get("content-encoding") for each in answers] == ["gzip", None]
    assert answers[0].content == answers[1].content
    assert answers[0].headers["etag"] == answers[1].headers["etag"]


async def test_file_is_not_sent_again_when_the_browser_has_it(studio: httpx.AsyncClient) -> None:
    first = await studio.get("/studio/main.js")
    assert first.headers["cache-control"] == "no-cache"
    again = await studio.get("/studio/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    ["", "none.js", "index.html", "../routes.py", "%2e%2e/routes.py", "views/", "main.js%00", "/main.js"],
)
async def test_file_is_not_found_when_the_studio_has_no_such_one(
    studio: httpx.AsyncClient, path: str
) -> None:
    try:
        answer = await studio.get(f"/studio/{path}")
    except Exception as error:  # noqa: BLE001 - the application here has no handler of errors
        assert getattr(error, "status", None) == 404
    else:
        assert answer.status_code == 404


async def test_views_of_other_distributions_are_listed_and_a_broken_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "others_view"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "view.js").write_text("export const view = {};")
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = [
        EntryPoint("others", "others_view", routes.GROUP),
        EntryPoint("missing", "no_such_package", routes.GROUP),
        EntryPoint("../up", "others_view", routes.GROUP),
    ]
    monkeypatch.setattr(routes, "entry_points", lambda group: entries)
    app = FastAPI(docs_url=None)
    app.include_router(router())
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
    listed = (await client.get("/studio/views.json")).json()
    assert listed == {"views": ["/studio/families/others/view.js"]}
    assert (await client.get(listed["views"][0])).text == "export const view = {};"
    assert set(added_assets()) == {"families/others/view.js"}
