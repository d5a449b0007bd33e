"""compose.yaml: each profile is well formed; the default one exports, serves, is watched and drains."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from docker.models.containers import Container
from docker_engine import ROOT, Engine, ended_of, free_ports, versions, wait_until

from slipway_client import Client, Progress, TextToVideoRequest, Video

PROFILES = {
    (): {"export", "triton", "prometheus"},
    ("gpu",): {"export-gpu", "triton-gpu", "prometheus"},
    ("cpu", "grafana", "tracing"): {"export", "triton", "prometheus", "grafana", "collector"},
    ("client",): {"client", "prometheus"},
    ("load",): {"load", "load-worker", "prometheus"},
}


@pytest.mark.parametrize("profiles", PROFILES, ids=lambda names: "+".join(names) or "default")
def test_compose_starts_the_promised_services_when_profiles_are_named(
    compose: Engine, profiles: tuple[str, ...]
) -> None:
    named = [word for name in profiles for word in ("--profile", name)]
    config = json.loads(compose.compose(*named, "config", "--format", "json").stdout)
    assert set(config["services"]) == PROFILES[profiles]
    for service in config["services"].values():
        assert "privileged" not in service and service["cap_drop"] == ["ALL"]
        for volume in service.get("volumes", []):
            source = Path(volume["source"])
            assert volume["type"] == "volume" or source.exists() or source == ROOT / "out", (
                f"{source} is missing"
            )


def test_gpu_profile_reserves_a_device_and_shared_memory_when_configured(compose: Engine) -> None:
    config = json.loads(compose.compose("--profile", "gpu", "config", "--format", "json").stdout)
    triton = config["services"]["triton-gpu"]
    assert triton["deploy"]["resources"]["reservations"]["devices"] == [
        {"capabilities": ["gpu"], "driver": "nvidia", "count": 1}
    ]
    assert int(triton["shm_size"]) == 4 << 30
    assert triton["build"]["args"]["TRITON_BASE"] == versions()["TRITON_BASE"]
    export = config["services"]["export-gpu"]
    assert export["build"]["args"]["EXPORT_BASE"] == versions()["TENSORRT_BASE"]
    assert {"--engine=tensorrt", "--precision=fp16"} <= {*export["command"]}


@dataclass(frozen=True)
class Project:
    """The running default profile, under a name and on ports of its own."""

    engine: Engine
    environment: dict[str, str]

    def compose(self, *arguments: str, code: int | None = 0) -> str:
        return self.engine.compose(*arguments, code=code, limit_s=1800, **self.environment).stdout

    def service(self, name: str) -> Container:
        return self.engine.client.containers.get(self.compose("ps", "--all", "--quiet", name).strip())

    def ask_prometheus(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.environment['PROMETHEUS_PORT']}/api/v1/{path}"
        return httpx.get(url, params=query, trust_env=False).raise_for_status().json()["data"]

    def query(self, expression: str) -> list[float]:
        found = self.ask_prometheus("query", query=expression)["result"]
        return [float(sample["value"][1]) for sample in found]


@pytest.fixture(scope="module")
def project(
    compose: Engine, images: dict[str, str], prometheus_image: str, shown: Callable[[str], None]
) -> Iterator[Project]:
    """`docker compose up --detach` of this checkout."""
    names = ("HTTP_PORT", "GRPC_PORT", "METRICS_PORT", "PROMETHEUS_PORT")
    ports = dict(zip(names, map(str, free_ports(len(names))), strict=True))
    own = {"COMPOSE_PROJECT_NAME": f"slipway-test-{os.getpid()}", "PROMETHEUS_IMAGE": prometheus_image}
    project = Project(compose, {**own, **ports})
    try:
        project.compose("up", "--detach", "--no-build")
        compose.wait_healthy(project.service("triton"))
        yield project
    finally:
        project.compose("--profile", "*", "down", "--volumes", "--timeout", "5", code=None)


def test_default_profile_exports_serves_and_is_watched_when_brought_up(
    project: Project, shown: Callable[[str], None]
) -> None:
    assert project.service("export").attrs["State"]["ExitCode"] == 0
    triton = project.service("triton").attrs
    assert triton["State"]["Health"]["Status"] == "healthy"
    assert (triton["HostConfig"]["ReadonlyRootfs"], triton["HostConfig"]["ShmSize"]) == (True, 1 << 30)
    said = project.compose(
        *(
            "run",
            "--rm",
            "--no-deps",
            "client",
            "generate",
            "wan_t2v",
            "A serene lake",
            "--url",
            "triton:8001",
        ),
        *("--frames", "5", "--size", "32x32", "--steps", "3", "--output", "/tmp/lake.mp4"),
    )
    assert said.startswith("/tmp/lake.mp4: 5 frames, 32x32")
    wait_until(lambda: project.query('up{job="slipway"}') == [1.0], "Prometheus scrapes Triton")
    wait_until(
        lambda: project.query('nv_inference_request_success{model="wan_t2v"}') == [1.0],
        "the request is counted",
    )
    rules = [rule["name"] for group in project.ask_prometheus("rules")["groups"] for rule in group["rules"]]
    assert rules
    shown(f"compose up: export ended with 0, triton is healthy, client: {said.strip()}")
    shown(f"compose up: Prometheus counts the request and evaluates {len(rules)} rules")


def test_load_profile_makes_load_by_its_workers_when_brought_up(
    project: Project, shown: Callable[[str], None]
) -> None:
    small = {"frames": 5, "height": 32, "width": 32, "steps": 2}
    fields = " ".join(f"--field wan_t2v.{name}={size}" for name, size in small.items())
    asked = {"LOAD_ARGS": f"--family wan_t2v --users 2 --seconds 4 {fields}", "LOAD_WORKERS": "2"}
    loading = replace(project, environment={**project.environment, **asked})
    loading.compose("--profile", "load", "up", "--detach", "--no-build", "load", "load-worker")
    (master,), workers = (
        loading.compose("--profile", "load", "ps", "--all", "--quiet", service).split()
        for service in ("load", "load-worker")
    )
    assert len(workers) == 2
    containers = [project.engine.client.containers.get(each) for each in (master, *workers)]
    report, *others = [ended_of(each) for each in containers]
    assert [each.code for each in (report, *others)] == [0] * 3, report.stdout + report.stderr
    lines = report.stdout.splitlines()
    assert re.fullmatch(r"wan_t2v: \d+ requests in 4 s: [1-9]\d* answered; .*", lines[0]), lines
    assert any(line.startswith("server: wan_t2v: ") for line in lines), lines
    shown(f"compose load, two workers: {lines[0]}")


@dataclass(frozen=True)
class Generated:
    """A video that was answered: when it was asked for, its steps, and when it came."""

    began_s: float
    steps: list[int]
    came_s: float


def generated_until(url: str, over: Callable[[], bool], started: threading.Event) -> list[Generated]:
    """Ask for one video after the other until it is over; the last one begins before that."""
    videos = []
    request = TextToVideoRequest(prompt="x", frames=33, height=64, width=64, steps=100)
    with Client(url) as client:
        while not over():
            began_s, steps = time.time(), []
            for event in client.generate(request):
                if isinstance(event, Progress):
                    steps.append(event.step)
                    started.set()
                else:
                    assert isinstance(event, Video)
                    videos.append(Generated(began_s, steps, time.time()))
    return videos


def test_requests_under_way_are_finished_when_compose_stops_the_server(
    project: Project, shown: Callable[[str], None]
) -> None:
    container = project.service("triton")
    url, started = f"127.0.0.1:{project.environment['GRPC_PORT']}", threading.Event()
    with project.engine.kills(container) as killed, ThreadPoolExecutor() as pool:
        kill = pool.submit(killed)
        # Two, so that one is under way while the other begins anew.
        callers = [pool.submit(generated_until, url, kill.done, started) for _ in range(2)]
        assert started.wait(600)
        project.compose("stop", "triton")
        videos = [video for caller in callers for video in caller.result()]
    assert kill.result()["Actor"]["Attributes"]["signal"] == "15"
    signalled_s = kill.result()["timeNano"] / 1e9
    assert all(video.steps == [*range(1, 101)] for video in videos)
    under_way = [video for video in videos if video.began_s < signalled_s < video.came_s]
    assert under_way
    container.reload()
    state = container.attrs["State"]
    assert (state["ExitCode"], state["Running"]) == (0, False)
    first = under_way[0]
    shown(
        f"compose stop: SIGTERM {signalled_s - first.began_s:.1f} s into a request; all {len(first.steps)}"
        f" steps and the video came by {first.came_s - first.began_s:.1f} s, then exit code 0"
    )
