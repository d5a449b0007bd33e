"""`slipway load --via gateway` on a real gateway before a real Triton."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway_fixtures import Gateway, running_gateway
from load_environment import LoadEnvironment, load_environment

from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

SMALL = {"frames": 5, "height": 32, "width": 32, "steps": 4}
WAN = "--family wan_t2v " + " ".join(f"--field wan_t2v.{name}={size}" for name, size in SMALL.items())


@pytest.fixture(scope="module")
def environment(shared: Path) -> LoadEnvironment:
    return load_environment(shared)


@pytest.fixture(scope="module")
def gateway(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway([server.grpc_url], tmp_path_factory.mktemp("gateway")) as running:
        yield running


def test_users_make_delete_pause_and_resume_videos_through_a_gateway(
    gateway: Gateway, environment: LoadEnvironment, tmp_path: Path
) -> None:
    line = f"--via gateway --gateway {gateway.url} {WAN} --users 4 --seconds 12"
    line += " --cancel-share 0.2 --pause-share 0.3"
    done = environment.load(tmp_path, "localhost:1", line)
    assert done.code == 0, done.output
    whole = done.whole("wan_t2v")
    assert set(whole["ended"]) <= {"answered", "cancelled"}, (whole, done.report["models"]["wan_t2v"])
    assert whole["ended"]["answered"] > 0
    for name in ("latency_s", "first_progress_s", "queue_s", "service_s", "real_time_factor"):
        assert whole["measures"][name]["count"] == whole["ended"]["answered"], name
    assert "data:image/png;base64," in done.page
    jobs = gateway.http.get("/v1/videos", params={"limit": 100}).json()["data"]
    assert {job["status"] for job in jobs} == {"completed"}
    # A resumed video goes on from its state, so no video began twice.
    assert {job["attempts"] for job in jobs} == {1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--family wan_t2v --gateway http://localhost:1", "gateway must be ready at http://localhost:1"),
        ("--family framepack_i2v", "a server that is ready with one of framepack_i2v, got none"),
        ("--family wakeword", "family must make videos with --via gateway"),
    ],
)
def test_load_says_what_is_wrong_before_a_job_is_created(
    gateway: Gateway, environment: LoadEnvironment, line: str, said: str
) -> None:
    line = line if "--gateway" in line else f"{line} --gateway {gateway.url}"
    done = environment.run("slipway", "load", "--via", "gateway", *line.split())
    assert done.returncode in (1, 2) and done.stdout.startswith("error: load: "), done.stdout
    assert said in done.stdout


def test_wrong_field_is_named_when_users_begin(
    gateway: Gateway, environment: LoadEnvironment, tmp_path: Path
) -> None:
    # On a busy machine, the users begin after several seconds.
    line = f"--via gateway --gateway {gateway.url} --family wan_t2v --field wan_t2v.frame=5 --seconds 15"
    done = environment.load(tmp_path, "localhost:1", f"{line} --users 1")
    assert done.code == 1
    assert "fields of wan_t2v must be of" in done.report["refusals"][0]
