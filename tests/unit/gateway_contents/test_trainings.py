"""Trainings of words: the recordings that callers send, their order, and how each ends; a script trains."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from slipway_gateway.app import create_app
from slipway_gateway.guard import GuardSettings
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.trained_models.training_routes import training_router
from slipway_gateway.trained_models.trainings import TrainingSettings
from slipway_serving.protocol.errors import InvalidRequest

# It writes its arguments, waits for a file where there is one to wait for, and fails for the word "bad".
SCRIPT = """
import json, pathlib, sys, time
arguments = sys.argv[1:]
here = pathlib.Path(__file__).parent
(here / f"ran-{arguments[3]}.json").write_text(json.dumps(arguments))
while (here / "wait").exists():
    time.sleep(0.01)
if arguments[3] == "bad":
    print("loading", file=sys.stderr)
    print("error: negative must hold at least 8 recordings louder than silence", file=sys.stderr)
    sys.exit(2)
if arguments[3] == "dead":
    sys.exit(3)
"""
FORM = [(kind, (f"{index}.wav", b"sound")) for kind in ("positive", "negative") for index in range(8)]


@asynccontextmanager
async def api(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The routes, with the script in place of the command."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    settings = TrainingSettings(
        "demo",
        folder / "trained",
        folder / "models",
        control="localhost:8000",
        control_token_file=folder / "token",
        program=(sys.executable, str(script)),
    )
    routes = training_router(settings, lambda: None)
    app = create_app([routes], GuardSettings(keys_required=True, body_bytes=1 << 20), GatewayMetrics(), "0")
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client


async def ended(client: httpx.AsyncClient, word: str) -> dict[str, str]:
    async with asyncio.timeout(60):
        while True:
            answer = (await client.get(f"/v1/models/trained/{word}/training")).json()
            if answer["state"] in ("done", "failed"):
                return dict(answer)
            await asyncio.sleep(0.01)


async def test_word_is_trained_on_the_recordings_of_the_form(tmp_path: Path) -> None:
    async with api(tmp_path) as client:
        answer = await client.post("/v1/models/trained/hello", files=FORM)
        assert (answer.status_code, answer.json()["word"]) == (202, "hello")
        assert await ended(client, "hello") == {"word": "hello", "state": "done", "error": None}
    recordings = tmp_path / "trained" / "recordings" / "hello"
    assert len(list((recordings / "positive").glob("*.wav"))) == 8
    arguments = json.loads((tmp_path / "ran-hello.json").read_text())
    assert arguments[:2] == ["train", "wakeword"]
    options = dict(zip(arguments[2:-2:2], arguments[3:-2:2], strict=True))
    assert options["--positive"] == str(recordings / "positive")
    assert options["--backbone"] == "demo" and options["--triton"] == "localhost:8000"
    assert arguments[-2:] == ["--force", "--quiet"]


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("bad", "negative must hold at least 8 recordings louder than silence"),
        ("dead", "the training ended with exit code 3; see the log of the gateway"),
    ],
)
async def test_training_says_why_it_failed(tmp_path: Path, word: str, problem: str) -> None:
    async with api(tmp_path) as client:
        await client.post(f"/v1/models/trained/{word}", files=FORM)
        assert await ended(client, word) == {"word": word, "state": "failed", "error": problem}


async def test_words_are_trained_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    async with api(tmp_path) as client:
        for word in ("one", "two"):
            assert (await client.post(f"/v1/models/trained/{word}", files=FORM)).status_code == 202
        async with asyncio.timeout(60):
            while not (tmp_path / "ran-one.json").exists():
                await asyncio.sleep(0.01)
        again = await client.post("/v1/models/trained/one", files=FORM)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "model_busy")
        two = (await client.get("/v1/models/trained/two/training")).json()
        assert two["state"] == "queued" and not (tmp_path / "ran-two.json").exists()
        (tmp_path / "wait").unlink()
        assert (await ended(client, "two"))["state"] == "done"


async def test_running_training_ends_with_the_gateway(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    async with api(tmp_path) as client:
        await client.post("/v1/models/trained/one", files=FORM)
        async with asyncio.timeout(60):
            while not (tmp_path / "ran-one.json").exists():
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("word", "form", "status", "problem"),
    [
        ("Hello!", FORM, 400, "got 'Hello!'"),
        ("hello", FORM[:8], 400, "negative must be 8 recordings or more, got 0"),
        ("hello", [*FORM, ("negative", ("x.exe", b"MZ"))], 400, "negative must be files that end in .flac"),
    ],
)
async def test_form_that_breaks_a_rule_is_refused_and_nothing_is_stored(
    tmp_path: Path, word: str, form: list[tuple[str, tuple[str, bytes]]], status: int, problem: str
) -> None:
    async with api(tmp_path) as client:
        answer = await client.post(f"/v1/models/trained/{word}", files=form)
        assert (answer.status_code, problem in answer.json()["error"]["message"]) == (status, True), (
            answer.text
        )
        unknown = await client.get("/v1/models/trained/hello/training")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "training_not_found")
        other = await client.post("/v1/models/trained/hello", json={})
        assert other.status_code == 415
    assert not (tmp_path / "trained").exists()


def test_backbone_needs_a_folder_of_models() -> None:
    with pytest.raises(InvalidRequest, match="models must be given with backbone"):
        GatewaySettings(triton=("localhost:8001",), backbone="demo")
