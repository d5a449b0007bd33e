"""The gateway of the default profile: a key, a video over HTTP, a restart that forgets nothing, metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from compose_project import Project, running_project
from docker_engine import Engine, wait_until

SMALL = {"prompt": "a red ball grows on sand", "size": "32x32", "num_frames": 5, "num_inference_steps": 3}


@pytest.fixture(scope="module")
def project(compose: Engine, images: dict[str, str], prometheus_image: str) -> Iterator[Project]:
    """`docker compose up --detach` of this checkout."""
    with running_project(compose, prometheus_image, "gateway") as running:
        compose.wait_healthy(running.service("triton"))
        compose.wait_healthy(running.service("gateway"))
        yield running


@pytest.fixture(scope="module")
def key(project: Project) -> str:
    """A key, made as docs/operate/gateway.md says."""
    said = project.compose("exec", "--no-TTY", "gateway", "slipway", "gateway", "keys", "create", "me")
    found = re.search(r"sk-slipway-\S+", said)
    assert found, said
    return found[0]


@pytest.fixture(scope="module")
def api(project: Project, key: str) -> Iterator[httpx.Client]:
    """A client of the gateway with the key."""
    url = f"http://127.0.0.1:{project.environment['GATEWAY_PORT']}"
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, "the gateway is ready")
        yield client


def finished(api: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    """Return a job when it has ended."""
    seen: dict[str, Any] = {}

    def ended() -> bool:
        seen.update(api.get(f"/v1/videos/{job['id']}").raise_for_status().json())
        return seen["status"] not in {"queued", "in_progress"}

    wait_until(ended, f"{job['id']} has ended")
    return seen


def test_caller_without_a_key_is_refused_when_the_gateway_runs_in_a_container(api: httpx.Client) -> None:
    bare = httpx.post(api.base_url.join("/v1/videos"), json=SMALL, trust_env=False)
    assert bare.status_code == 401
    assert bare.json()["error"]["message"]


def test_video_is_made_and_downloaded_over_http_and_survives_a_restart_of_the_gateway(
    project: Project, api: httpx.Client, shown: Callable[[str], None]
) -> None:
    job = api.post("/v1/videos", json=SMALL).raise_for_status().json()
    done = finished(api, job)
    assert done["status"] == "completed", done
    video = api.get(f"/v1/videos/{job['id']}/content").raise_for_status()
    assert video.headers["content-type"] == "video/mp4" and video.content[4:8] == b"ftyp"
    project.compose("restart", "gateway")
    project.engine.wait_healthy(project.service("gateway"))
    listed = api.get("/v1/videos").raise_for_status().json()["data"]
    assert [each["id"] for each in listed] == [job["id"]]
    assert api.get(f"/v1/videos/{job['id']}/content").content == video.content
    shown(f"gateway: {job['id']} of {len(video.content)} bytes, the same after a restart of its container")


def test_prometheus_counts_the_jobs_when_the_default_profile_is_up(
    project: Project, api: httpx.Client
) -> None:
    job = api.post("/v1/videos", json={**SMALL, "seed": 7}).raise_for_status().json()
    assert finished(api, job)["status"] == "completed"
    wait_until(lambda: project.query('up{job="slipway-gateway"}') == [1.0], "Prometheus scrapes the gateway")
    counted = 'sum(slipway_gateway_jobs_total{outcome="completed"}) > 0'
    wait_until(lambda: project.query(counted) != [], "the job is counted")


def test_gateway_writes_only_its_volume_when_it_runs(project: Project, api: httpx.Client) -> None:
    container = project.service("gateway")
    code, output = container.exec_run(["sh", "-c", "touch /opt/x; ls -ld /data/gateway-data; id -u"])
    assert code == 0
    assert b"Read-only file system" in output and b"drwx------" in output and b"1000" in output
    assert container.attrs["HostConfig"]["ReadonlyRootfs"] is True
