"""The management API over a models folder: who may ask, what it answers, and its worker's life."""

from __future__ import annotations

import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from fastapi.testclient import TestClient
from server_fixtures import wait_until

from slipway_export.families import family_named
from slipway_export.families.wakeword.network import HeadConfig
from slipway_export.families.wakeword.presets import write_word
from slipway_export.trained_models import Library
from slipway_gateway.trained_models.app import create_app
from slipway_gateway.trained_models.exports import Busy, Exports
from slipway_gateway.trained_models.management import Management
from slipway_gateway.trained_models.routes import MAX_BODY_BYTES
from slipway_gateway.trained_models.worker import Job
from slipway_serving.protocol.errors import InvalidRequest, Overloaded
from slipway_serving.triton.control import ModelControl

TOKEN = "0123456789abcdef"
HEAD = family_named("wakeword_head")
ROOT = Path(__file__).resolve().parents[2]
HOME = "http://127.0.0.1:8003"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """A models folder with one random word."""
    library = Library(tmp_path / "trained")
    write_word(library.create("jarvis"), HeadConfig(embedding_dim=64), seed=0)
    return library


@contextmanager
def api(
    library: Library,
    base_url: str = HOME,
    token: str | None = None,
    host: str = "127.0.0.1",
    triton: ModelControl | None = None,
) -> Iterator[TestClient]:
    """Serve the API without a Triton."""
    management = Management(HEAD, library, library.folder.parent / "repository", triton)
    app = create_app(management, token, host)
    with TestClient(app, base_url=base_url, raise_server_exceptions=False) as client:
        yield client


def finished(client: TestClient, word: str = "jarvis") -> dict[str, Any]:
    """Wait for an export's end and return the status."""
    address = f"/v1/models/{word}/onnx-status"
    wait_until(lambda: client.get(address).json()["export"] not in ("queued", "running"), "the export", 180)
    return client.get(address).json()


def test_export_runs_in_a_worker_and_its_status_says_so(library: Library) -> None:
    with api(library) as client:
        (listed,) = client.get("/v1/models/trained").json()
        assert (listed["id"], listed["has_pt"], listed["has_onnx"], listed["export"]) == (
            "jarvis",
            True,
            False,
            "idle",
        )
        assert listed["served"] is None
        assert client.post("/v1/models/jarvis/export-onnx", json={"precision": "int8"}).status_code == 202
        again = client.post("/v1/models/jarvis/export-onnx")
        assert (again.status_code, again.json()["error"]["code"]) == (409, "model_busy")
        assert client.delete("/v1/models/jarvis/onnx").status_code == 409
        status = finished(client)
        assert (status["export"], status["onnx_error"]) == ("done", None)
        assert (status["has_onnx"], status["onnx_precision"], status["onnx_is_current"]) == (
            True,
            "int8",
            True,
        )
        assert status["onnx_size_bytes"] == (library.find("jarvis") / "model.onnx").stat().st_size
        repository = library.folder.parent / "repository"
        assert [model.name for model in repository.iterdir()] == ["wakeword_head_jarvis"]
        deleted = client.delete("/v1/models/jarvis/onnx").json()
        assert (deleted["has_pt"], deleted["has_onnx"]) == (True, False)
        assert list(repository.iterdir()) == []
        assert client.delete("/v1/models/jarvis/onnx").status_code == 404


class Payload:
    """Unpickles into a call that leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.trace}",))


def test_file_that_wants_code_to_be_run_is_refused_and_not_run(library: Library, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    weights = library.find("jarvis") / "model.pt"
    torch.save({"classifier_state_dict": Payload(trace), "wake_word": "jarvis"}, weights)
    (library.create("old") / "model.pt").write_bytes(pickle.dumps(Payload(trace)))
    with api(library) as client:
        for word in ("jarvis", "old"):
            assert client.post(f"/v1/models/{word}/export-onnx").status_code == 202
            status = finished(client, word)
            assert status["export"] == "failed"
            assert "it was not run" in status["onnx_error"]
            assert status["has_pt"]
    assert not trace.exists()
    assert not (tmp_path / "repository" / "wakeword_head_jarvis").exists()


@pytest.mark.parametrize(
    "name",
    ["..%2Fx", "%2Fetc", "a%2Fb", "..", ".", "j%C3%A1rvis", "JARVIS", "x" * 65, "a_fused", "%00", "%0A"],
)
@pytest.mark.parametrize(
    ("method", "action"), [("GET", "onnx-status"), ("POST", "export-onnx"), ("DELETE", "onnx")]
)
def test_name_that_is_no_id_reaches_no_path(library: Library, method: str, action: str, name: str) -> None:
    def paths() -> list[Path]:
        return sorted(library.folder.parent.rglob("*"))

    before = paths()
    with api(library) as client:
        answer = client.request(method, f"/v1/models/{name}/{action}")
    assert answer.status_code in (400, 404, 405)
    assert paths() == before


def test_unknown_model_is_not_found_and_named(library: Library) -> None:
    with api(library) as client:
        answer = client.get("/v1/models/alexa/onnx-status")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert "(jarvis), got alexa" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"precision": "fp7"}', "precision"),
        ('{"precison": "fp32"}', "precison"),
        ('{"variant": "fast"}', "variant must be one of fused"),
        ("{", "JSON"),
        ("[" * 20_000, "error parsing the body"),
        ("3", "body"),
    ],
)
def test_bad_body_is_refused_naming_the_field(library: Library, body: str, field: str) -> None:
    with api(library) as client:
        answer = client.post(
            "/v1/models/jarvis/export-onnx", content=body, headers={"content-type": "application/json"}
        )
        assert client.get("/v1/models/jarvis/onnx-status").json()["export"] == "idle"
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert field.lower() in answer.json()["error"]["message"].lower()


def test_body_above_the_bound_is_refused(library: Library) -> None:
    with api(library) as client:
        large = client.post("/v1/models/jarvis/export-onnx", content=b" " * (MAX_BODY_BYTES + 1))
        endless = iter([b" " * 1024] * (MAX_BODY_BYTES // 1024 + 1))
        chunks = client.post("/v1/models/jarvis/export-onnx", content=endless)
    assert (large.status_code, chunks.status_code) == (413, 413)


def test_token_is_asked_for_on_every_route_but_health_and_the_documentation(library: Library) -> None:
    with api(library, token=TOKEN, host="0.0.0.0", base_url="http://server.example.org") as client:
        routes = (
            ("GET", "/v1/models/trained"),
            ("GET", "/v1/models/jarvis/onnx-status"),
            ("POST", "/v1/models/jarvis/export-onnx"),
            ("DELETE", "/v1/models/jarvis/onnx"),
        )
        for wrong in ({}, {"Authorization": "Bearer another-token-000"}, {"Authorization": f"Basic {TOKEN}"}):
            for method, address in routes:
                answer = client.request(method, address, headers=wrong)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert TOKEN not in answer.text
        assert (
            client.get("/v1/models/trained", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        )
        assert client.get("/health").json() == {"status": "ok"}
        paths = client.get("/openapi.json").json()["paths"]
        assert set(paths["/v1/models/{model}/export-onnx"]["post"]["responses"]) >= {
            "202",
            "401",
            "404",
            "409",
        }


def test_address_that_others_reach_needs_a_token(library: Library) -> None:
    with pytest.raises(InvalidRequest, match="token must be given .* got none for host 0.0.0.0"):
        create_app(Management(HEAD, library, Path("repository")), host="0.0.0.0")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example.org"},
        {"Host": "evil.example.org:8003"},
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
    ],
)
def test_web_page_cannot_ask_through_a_browser_when_there_is_no_token(
    library: Library, headers: dict[str, str]
) -> None:
    with api(library) as client:
        answer = client.post("/v1/models/jarvis/export-onnx", headers=headers)
        assert answer.status_code == 403
        assert client.get("/v1/models/jarvis/onnx-status").json()["export"] == "idle"
        assert client.get("/v1/models/trained", headers={"Origin": HOME}).status_code == 200


def test_export_is_refused_by_name_when_triton_does_not_answer(library: Library) -> None:
    with api(library, triton=ModelControl("127.0.0.1:1")) as client:
        assert client.post("/v1/models/jarvis/export-onnx").status_code == 202
        status = finished(client)
    assert status["export"] == "failed"
    assert "triton 127.0.0.1:1: server does not answer" in status["onnx_error"]
    assert not (library.folder.parent / "repository" / "wakeword_head_jarvis").exists()


def job(library: Library, model: str) -> Job:
    return Job(HEAD.name, model, str(library.folder), str(library.folder.parent / "repository"))


def test_export_that_takes_too_long_is_stopped_and_says_so(library: Library) -> None:
    exports = Exports(limit_s=0.2)
    try:
        exports.submit(job(library, "jarvis"))
        wait_until(lambda: exports.state("jarvis") == "failed", "the export's end")
    finally:
        exports.close()
    assert "did not finish within 0.2 s" in str(library.status("jarvis").onnx_error)


def test_queue_of_exports_is_bounded_and_ends_at_once(library: Library) -> None:
    words = [f"word{index}" for index in range(4)]
    for word in words:
        write_word(library.create(word), HeadConfig(embedding_dim=64), seed=0)
    exports = Exports(max_queued=2)
    try:
        exports.submit(job(library, words[0]))
        wait_until(lambda: exports.state(words[0]) == "running", "the first export")
        exports.submit(job(library, words[1]))
        exports.submit(job(library, words[2]))
        with pytest.raises(Overloaded, match="the queue is full .2 exports are waiting."):
            exports.submit(job(library, words[3]))
        with pytest.raises(Busy, match="word1 is being"):
            exports.submit(job(library, words[1]))
    finally:
        exports.close()
    assert "exit code -9" in str(library.status(words[0]).onnx_error)
    assert library.status(words[1]).onnx_error is None


@contextmanager
def command(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "slipway_cli.root", "manage", *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address(process: subprocess.Popen[str]) -> str:
    """Return where a command says that it listens."""
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert found
    return found[0]


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0), (signal.SIGINT, 0)])
def test_worker_ends_with_the_server(library: Library, ending: signal.Signals, code: int) -> None:
    flags = (f"--repository={library.folder.parent / 'repository'}", f"--models={library.folder}", "--port=0")
    with command(*flags) as process, httpx.Client(base_url=address(process), trust_env=False) as client:
        wait_until(lambda: answers(client), "the API")
        assert client.post("/v1/models/jarvis/export-onnx").status_code == 202
        wait_until(lambda: bool(psutil.Process(process.pid).children()), "the worker")
        (worker,) = psutil.Process(process.pid).children()
        process.send_signal(ending)
        assert process.wait(300) == code
        wait_until(lambda: not worker.is_running(), "the worker's end")
    assert not (library.folder.parent / "repository" / "wakeword_head_jarvis").exists()
    assert library.status("jarvis").has_pt


def test_command_refuses_a_port_that_is_taken(library: Library) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command("--repository=repository", f"--models={library.folder}", f"--port={port}") as process:
            output, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert f"got 127.0.0.1 and {port}" in " ".join(output.split())


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_command_refuses_an_open_address_without_a_token(library: Library) -> None:
    with command("--repository=repository", f"--models={library.folder}", "--host=0.0.0.0") as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "token must be given when other machines can reach the API" in " ".join(output.split())
