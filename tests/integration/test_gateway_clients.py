"""Unmodified clients of the video API drive a gateway before a real Triton with Wan's demo checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_environments import client_environment
from gateway_fixtures import Gateway, running_gateway
from tiny_exports import exported_once

from slipway_demo import folder as demo_folder
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

OPENAI_VERSIONS = {"openai2": "2.2.0", "openai3": "3.57.0"}
PROMPTS = ("a red ball grows on sand", "a blue ring falls on snow", "a green star rises on grass")


@pytest.fixture(scope="module")
def server(shared: Path) -> Iterator[Server]:
    repository, _ = exported_once(shared, "wan_t2v", "demo")
    with Server(ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)) as running:
        yield running


@pytest.fixture
def gateway(server: Server, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that requires keys, with an empty database."""
    with running_gateway([server.grpc_url], tmp_path, "--host", "0.0.0.0", key=key(tmp_path)) as running:
        running.url = running.url.replace("0.0.0.0", "127.0.0.1")
        yield running


def key(folder: Path, *options: str) -> str:
    """Create a key as an operator does, and return its secret."""
    command = [sys.executable, "-m", "slipway_cli", "gateway", "keys", "create", "tests", *options]
    done = subprocess.run(
        [*command, "--data", str(folder / "data")], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def caller(gateway: Gateway) -> str:
    """Return the key of a gateway's caller."""
    return str(gateway.http.headers["authorization"]).removeprefix("Bearer ")


def told(refusal: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a program sees of a refusal: class of the exception, status, code and field."""
    return tuple(refusal.get(name) for name in ("class", "status", "code", "param"))


@pytest.mark.parametrize("name", OPENAI_VERSIONS)
def test_openai_client_gets_what_it_expects_when_it_drives_the_gateway(
    name: str, gateway: Gateway, tmp_path: Path
) -> None:
    environment = client_environment(name)
    limited, file = key(tmp_path, "--jobs-per-day", "1"), tmp_path / "ball.mp4"
    seen = environment.drive(
        "drive_openai.py", gateway.url, caller(gateway), limited, str(file), cwd=tmp_path
    )
    assert seen["version"] == OPENAI_VERSIONS[name]
    check_life(seen["life"], file)
    check_forms(seen["forms"])
    check_stops(seen["stopped"], seen["failed"])
    newest, oldest = seen["listed"]["newest"], seen["listed"]["oldest"]
    assert len(newest) == 6 and newest == oldest[::-1]
    assert seen["listed"]["after"] == newest[1]
    assert seen["life"]["created"]["id"] == oldest[0]
    check_refusals(seen["refusals"])
    log = gateway.text()
    assert not [text for text in (caller(gateway), limited, "a red ball", "GET /v1") if text in log]


def check_life(life: dict[str, Any], file: Path) -> None:
    """Check what the client saw from the creation of a video to its files."""
    created, polled = life["created"], life["polled"]
    assert (created["object"], created["status"], created["progress"]) == ("video", "queued", 0)
    assert created["inference_time_s"] is None
    assert (created["model"], created["size"], created["seconds"]) == ("wan_t2v", "64x64", "2.062")
    assert life["poll_header"] == "1000"
    assert (polled["id"], polled["status"], polled["progress"]) == (created["id"], "completed", 100)
    assert (polled["seed"], polled["steps"], polled["error"]) == (5, 4, None)
    assert polled["completed_at"] >= polled["created_at"]
    assert (life["bytes"], file.read_bytes()[4:8]) == (file.stat().st_size, b"ftyp")
    assert (life["thumbnail"], life["spritesheet"]) == ("WEBP", "ffd8")
    remix = life["remix"]
    assert (remix["remixed_from_video_id"], remix["status"]) == (created["id"], "completed")
    assert (remix["request"]["prompt"], remix["seed"]) == ("a blue ring falls on snow", 5)


def check_forms(forms: dict[str, Any]) -> None:
    """Check that the same fields in any form are the same video, and another Idempotency-Key is another."""
    for video in forms["videos"]:
        assert video["status"] == "completed"
        found = video["request"]
        assert (found["steps"], found["seed"], found["frames"]) == (1, 6, 5)
    ids = {video["id"] for video in forms["videos"]}
    assert len(ids) == 1
    assert forms["again"] not in ids


def check_stops(stopped: dict[str, Any], failed: dict[str, Any]) -> None:
    """Check what the client saw of a paused video and of a failed one."""
    paused, resumed = stopped["paused"], stopped["resumed"]
    assert (paused["status"], paused["progress"], stopped["draft"]) == ("paused", 50, "ftyp")
    assert told(stopped["early"]) == ("NotFoundError", 404, "video_not_ready", None)
    assert (resumed["status"], resumed["attempts"]) == ("completed", 1)
    job = failed["job"]
    assert (job["status"], job["error"]["code"]) == ("failed", "deadline_exceeded")
    assert "0.001 s" in job["error"]["message"]
    assert told(failed["content"]) == ("ConflictError", 409, "video_failed", None)


def check_refusals(refusals: dict[str, Any]) -> None:
    """Check class, status, code and field of each exception, and what its message says."""
    assert refusals.pop("deleted")["deleted"] is True
    expected = {
        "size": ("BadRequestError", 400, "invalid_value", "height", "must be 32 to 64 px"),
        "seconds": ("BadRequestError", 400, "invalid_value", "seconds", "got '90'"),
        "steps": ("BadRequestError", 400, "invalid_value", "steps", "must be a whole number, got 'many'"),
        "boolean": ("BadRequestError", 400, "invalid_value", "seed", "must be a whole number, got "),
        "unknown": ("BadRequestError", 400, "invalid_value", "promt", "must be a field of the model"),
        "nested": ("BadRequestError", 400, "invalid_value", "fps", "must be 1 to 120, got -1"),
        "picture": ("BadRequestError", 400, "invalid_value", "input_reference", "takes none"),
        "model": ("NotFoundError", 404, "model_not_found", "model", "must be one that is served (wan_t2v)"),
        "gone": ("NotFoundError", 404, "video_not_found", None, "does not exist"),
        "gone_remix": ("NotFoundError", 404, "video_not_found", None, "does not exist"),
        "gone_delete": ("NotFoundError", 404, "video_not_found", None, "does not exist"),
        "variant": ("BadRequestError", 400, "invalid_value", "variant", "'spritesheet'"),
        "limit": ("BadRequestError", 400, "invalid_value", "limit", "100"),
        "key": ("AuthenticationError", 401, "invalid_key", None, "slipway gateway keys list"),
        "others": ("NotFoundError", 404, "video_not_found", None, "does not exist"),
        "daily": ("RateLimitError", 429, "daily_limit", None, "1 videos a day"),
    }
    assert {name: told(refusal) for name, refusal in refusals.items()} == {
        name: values[:4] for name, values in expected.items()
    }
    for name, (*_, said) in expected.items():
        assert said in refusals[name]["message"], refusals[name]


def test_litellm_gets_what_it_expects_when_it_drives_the_gateway(gateway: Gateway, tmp_path: Path) -> None:
    environment = client_environment("litellm")
    seen = environment.drive("drive_litellm.py", gateway.url, caller(gateway), cwd=tmp_path)
    assert (seen["created"]["status"], seen["created"]["seconds"]) == ("queued", "1.062")
    assert (seen["video"]["status"], seen["video"]["progress"]) == ("completed", 100)
    assert (seen["begins"], seen["bytes"] > 1000) == ("ftyp", True)
    assert seen["remix"]["status"] == "completed"
    assert seen["listed"] == 2
    jobs = gateway.http.get("/v1/videos").json()["data"]
    assert [job["request"]["prompt"] for job in jobs] == ["a blue ring", "a red ball grows on sand"]
    assert {(job["steps"], job["seed"], job["request"]["guidance_scale"]) for job in jobs} == {(4, 5, 3.0)}
    refusals = seen["refusals"]
    assert {name: told(refusal)[:2] for name, refusal in refusals.items()} == {
        "size": ("BadRequestError", 400),
        "steps": ("BadRequestError", 400),
        "model": ("NotFoundError", 404),
        "key": ("AuthenticationError", 401),
    }
    for name, said in (("size", "WIDTHxHEIGHT"), ("steps", '"param":"num_inference_steps"')):
        assert said in refusals[name]["message"]


def test_aiperf_measures_every_video_when_it_drives_the_gateway(gateway: Gateway, tmp_path: Path) -> None:
    results = measured(gateway, tmp_path)
    found = json.loads((results / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == len(PROMPTS)
    assert found["error_summary"] == []
    jobs = gateway.http.get("/v1/videos").json()["data"]
    assert {job["status"] for job in jobs} == {"completed"}
    assert {job["request"]["prompt"] for job in jobs} == set(PROMPTS)
    assert {(job["size"], job["steps"], job["request"]["frames"]) for job in jobs} == {("32x32", 2, 5)}
    times_ms = sorted(record["metrics"]["video_inference_time"]["value"] for record in records(results))
    assert times_ms == pytest.approx(sorted(1000 * job["inference_time_s"] for job in jobs))


def test_aiperf_counts_errors_when_a_field_is_wrong(gateway: Gateway, tmp_path: Path) -> None:
    failed = records(measured(gateway, tmp_path, "--extra-inputs", "fps:1000", code=1))
    assert len(failed) == len(PROMPTS)
    for record in failed:
        assert record["error"]["code"] == 400
        assert "fps must be 1 to 120, got 1000" in json.dumps(record["error"])
    assert gateway.http.get("/v1/videos").json()["data"] == []


def measured(gateway: Gateway, folder: Path, *options: str, code: int = 0) -> Path:
    """Run AIPerf over the prompts without a network, and return the folder of its results."""
    environment = client_environment("aiperf")
    prompts, results = folder / "prompts.jsonl", folder / "results"
    prompts.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in PROMPTS))
    # The tokenizer "builtin" is downloaded at its first use, so the checkpoint's own is taken.
    line = f"""
        profile --endpoint-type video-generation --model wan_t2v --url {gateway.url}
        --api-key {caller(gateway)} --tokenizer {demo_folder("wan_t2v") / "tokenizer"} --input-file {prompts}
        --custom-dataset-type single_turn --request-count {len(PROMPTS)} --concurrency 2
        --extra-inputs num_inference_steps:2 --extra-inputs size:32x32 --extra-inputs num_frames:5
        --download-video-content --no-gpu-telemetry --no-server-metrics --export-level records --ui none
        --artifact-dir {results}
    """
    environment.run("aiperf", *line.split(), *options, cwd=folder, code=code)
    return results


def records(results: Path) -> list[dict[str, Any]]:
    """Return AIPerf's record of each request."""
    return [json.loads(line) for line in (results / "profile_export.jsonl").read_text().splitlines()]
