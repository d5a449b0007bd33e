"""compose.yaml: each profile is well formed; the default one exports, serves, is watched and drains."""

from __future__ import annotations

import json
import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from compose_project import Project, running_project
from docker_engine import ROOT, Engine, ended_of, versions, wait_until

from slipway_client import Client, Progress, TextToVideoRequest, Video

PROFILES = {
    (): {"export", "triton", "gateway", "prometheus"},
    ("gpu",): {"export-gpu", "triton-gpu", "gateway", "prometheus"},
    ("cpu", "grafana", "tracing"): {"export", "triton", "gateway", "prometheus", "grafana", "collector"},
    ("fleet",): {
        *("export", "triton", "prometheus", "postgres", "object-store"),
        *("gateway-migrate", "gateway-api", "gateway-worker"),
    },
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


def test_gateway_needs_neither_a_password_nor_another_machine_when_the_default_profile_is_up(
    compose: Engine,
) -> None:
    config = json.loads(compose.compose("config", "--format", "json").stdout)
    gateway = config["services"]["gateway"]
    (port,) = gateway["ports"]
    assert (port["host_ip"], port["target"], port["published"]) == ("127.0.0.1", 8080, "8080")
    assert [volume["target"] for volume in gateway["volumes"]] == ["/data"]
    assert gateway["read_only"] is True and gateway["user"] == "1000:1000"
    assert not {"environment", "entrypoint"} & {key for key, value in gateway.items() if value}
    assert gateway["command"][:2] == ["--triton", "triton:8001"]


def test_fleet_shares_database_and_contents_and_migrates_before_anything_starts(compose: Engine) -> None:
    services = json.loads(compose.compose("--profile", "fleet", "config", "--format", "json").stdout)[
        "services"
    ]
    roles = {name: services[f"gateway-{name}"] for name in ("api", "worker", "migrate")}
    for name in ("api", "worker"):
        assert roles[name]["command"][:2] == ["--role", name]
        assert roles[name]["environment"] == roles["migrate"]["environment"]
        needed = roles[name]["depends_on"]["gateway-migrate"]
        assert needed["condition"] == "service_completed_successfully"
    assert roles["migrate"]["entrypoint"] == ["slipway", "gateway", "migrate"]
    assert roles["migrate"]["restart"] == "no"
    assert "ports" not in services["postgres"] and "ports" not in services["object-store"]
    # What the database and the S3 server take is what the gateway gives.
    shared, store = roles["api"]["environment"], services["object-store"]["environment"]
    database = services["postgres"]["environment"]
    assert (
        f":{database['POSTGRES_PASSWORD']}@postgres:5432/{database['POSTGRES_DB']}"
        in (shared["SLIPWAY_GATEWAY_DATABASE"])
    )
    assert shared["SLIPWAY_GATEWAY_CONTENTS"].startswith(f"s3://{store['GARAGE_DEFAULT_BUCKET']}/")
    assert shared["AWS_ACCESS_KEY_ID"] == store["GARAGE_DEFAULT_ACCESS_KEY"]
    assert shared["AWS_SECRET_ACCESS_KEY"] == store["GARAGE_DEFAULT_SECRET_KEY"]
    told = tomllib.loads((ROOT / "docker/garage.toml").read_text())["s3_api"]
    assert shared["AWS_ENDPOINT"].rpartition(":")[2] == told["api_bind_addr"].rpartition(":")[2]
    assert shared["AWS_REGION"] == told["s3_region"]


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


@pytest.fixture(scope="module")
def project(compose: Engine, images: dict[str, str], prometheus_image: str) -> Iterator[Project]:
    """`docker compose up --detach` of this checkout."""
    with running_project(compose, prometheus_image, "compose") as running:
        compose.wait_healthy(running.service("triton"))
        yield running


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
