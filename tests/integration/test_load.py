"""`slipway load` and plain Locust on a real Triton: shapes, arrivals, objectives, workers, both protocols."""

from __future__ import annotations

import csv
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from load_environment import ROOT, LoadEnvironment, assert_all_answered, load_environment
from server_fixtures import any_port

from slipway_export.repository.publish import add_canceller, stage_authored
from slipway_export.spec import AuthoredModel
from slipway_loadtests.load.saturation import OVERLOAD
from slipway_serving.families.matrix_game.request import REQUESTS
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

SMALL = {"frames": 5, "height": 32, "width": 32, "steps": 2}
WAN = "--family wan_t2v " + " ".join(f"--field wan_t2v.{name}={size}" for name, size in SMALL.items())


@pytest.fixture(scope="module")
def environment(shared: Path) -> LoadEnvironment:
    return load_environment(shared)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Triton with worlds of every mode, which take next to nothing to make."""
    repository = tmp_path_factory.mktemp("worlds") / "models"
    files = {"1/painted_world.py": Path(__file__).with_name("painted_world.py")}
    models = [AuthoredModel(each.model, files, "matrix_game", each) for each in REQUESTS.values()]
    for model in add_canceller(models):
        config = stage_authored(model, repository) / "config.pbtxt"
        program = "slipway_serving.families.matrix_game.session:MatrixGame"
        config.write_text(config.read_text().replace(program, "painted_world:PaintedWorld"))
    with Server(any_port(repository)) as running:
        yield running


def test_environment_has_neither_server_nor_torch(environment: LoadEnvironment) -> None:
    code = (
        "import importlib.util, locust\n"
        "print(*(n for n in ('torch', 'pytriton', 'onnxruntime') if importlib.util.find_spec(n)))"
    )
    done = environment.run("python", "-c", code)
    assert (done.returncode, done.stdout.strip()) == (0, "")


@pytest.mark.parametrize(
    ("line", "levels"),
    [
        ("--shape steady --users 2 --cancel-share 0.5", [2]),
        ("--shape ramp --arrivals poisson --per-s 8 --protocol http", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("--shape spike --arrivals gamma --per-s 8", [2, 8, 2]),
        ("--shape soak --arrivals constant --per-s 4", [4]),
    ],
    ids=lambda value: value.split()[1] if isinstance(value, str) else "",
)
def test_shape_sends_its_load_and_reports_it(
    server: Server, environment: LoadEnvironment, tmp_path: Path, line: str, levels: list[float]
) -> None:
    url = server.http_url.removeprefix("http://") if "http" in line else server.grpc_url
    metrics = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    done = environment.load(tmp_path, url, f"{WAN} {line} --seconds 3 --metrics {metrics}")
    assert done.code == 0, done.output
    found = done.report["models"]["wan_t2v"]
    assert [each["stage"]["level"] for each in found["stages"]] == levels
    whole = found["whole"]
    # What a user leaves may wait in the queue, and fill it, until a busy machine comes to it.
    assert set(whole["ended"]) <= {"answered", "cancelled", "rejected"}, whole
    assert whole["ended"]["answered"] > 0, whole
    if "cancel" in line:
        assert whole["ended"]["cancelled"] > 0, whole
    for name in ("latency_s", "first_progress_s", "step_s", "first_frame_s", "queue_s", "service_s"):
        assert whole["measures"][name]["count"] > 0, name
    assert whole["measures"]["step_s"]["count"] == SMALL["steps"] * whole["measures"]["latency_s"]["count"]
    assert done.report["server"]["wan_t2v"]["requests"] >= whole["ended"]["answered"]
    assert "data:image/png;base64," in done.page


def test_worlds_of_every_mode_are_played(
    worlds: Server, environment: LoadEnvironment, tmp_path: Path
) -> None:
    line = "--family matrix_game --users 3 --seconds 3 --session-s 1.5"
    done = environment.load(tmp_path, worlds.grpc_url, line)
    for request in REQUESTS.values():
        assert_all_answered(done, request.model, "first_frame_s", "jitter_s", "stall_s", "queue_s")


def test_user_stays_away_for_a_moment_when_rejected(environment: LoadEnvironment) -> None:
    code = (
        "import numpy as np\n"
        "from slipway_loadtests.load.plan import Plan\n"
        "from slipway_loadtests.load.users import USERS\n"
        "user = object.__new__(next(iter(USERS.values())))\n"
        "user.plan, user.random = Plan(), np.random.default_rng(0)\n"
        "for user.rejected in (False, True):\n"
        "    print(user.wait_time() > 0)\n"
    )
    done = environment.run("python", "-c", code)
    assert (done.returncode, done.stdout.split()) == (0, ["False", "True"]), done.stdout


def test_knee_and_what_is_beyond_it_are_reported_when_a_server_is_saturated(
    worlds: Server, environment: LoadEnvironment, tmp_path: Path
) -> None:
    model = "matrix_game_templerun"
    line = f"--family matrix_game --model {model} --users 1 --seconds 2 --output {tmp_path}"
    done = environment.run("slipway", "saturate", "--url", worlds.grpc_url, *line.split())
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"| `{model}` | ")
    found = json.loads((tmp_path / f"{model}.json").read_text())
    levels = [each["stage"]["level"] for each in found["stages"]]
    assert levels == sorted(set(levels)) and levels[-1] == max(round(OVERLOAD * found["expected"]), 1)
    # Of more worlds than there may be, the rest are refused.
    assert set(found["stages"][-1]["figures"]["ended"]) <= {"answered", "rejected"}
    assert (tmp_path / f"{model}-sessions.html").exists()


def test_load_ends_with_an_error_when_an_objective_is_broken(
    server: Server, environment: LoadEnvironment, tmp_path: Path
) -> None:
    slo, stages = tmp_path / "slo.yaml", tmp_path / "stages.yaml"
    slo.write_text("wan_t2v: {good: {latency_s: 0.000001}, least_good_share: 0.5, most_failed_share: 0}\n")
    stages.write_text("[{seconds: 1, level: 1}, {seconds: 1, level: 2}]")
    done = environment.load(tmp_path, server.grpc_url, f"{WAN} --slo {slo} --stages {stages}")
    assert done.code == 1, done.output
    (broken,) = done.report["broken"]
    assert broken == "wan_t2v: good_share must be 0.5 or more, got 0"
    assert broken in done.output and broken in done.page
    assert (done.report["kept"], done.whole("wan_t2v")["goodput_per_s"]) == (False, 0.0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--family wan_t2v --url grpc://localhost:1", "must be ready at grpc://localhost:1"),
        ("--family airimu", "must serve one of airimu, airimu_stream, got none"),
        ("--family toy", "family must be one of wan_t2v"),
        ("--family wan_t2v --model airimu", "model must be one of wan_t2v, got airimu"),
        ("--family wan_t2v --field frames=5", "field must be MODEL.FIELD=VALUE"),
        ("--family wan_t2v --session-s 0", "session_s must be above 0"),
        ("", "family must be given"),
    ],
)
def test_load_says_what_is_wrong_before_anything_is_sent(
    server: Server, environment: LoadEnvironment, line: str, said: str
) -> None:
    done = environment.run("slipway", "load", *f"--url {server.grpc_url} {line}".split())
    assert done.returncode in (1, 2) and done.stdout.startswith("error: load: "), done.stdout
    assert said in done.stdout


def test_wrong_field_of_a_request_is_named_when_users_begin(
    server: Server, environment: LoadEnvironment, tmp_path: Path
) -> None:
    line = "--family wan_t2v --field wan_t2v.frames=6 --seconds 1 --users 1"
    done = environment.load(tmp_path, server.grpc_url, line)
    assert done.code == 1
    assert "frames must be" in done.report["refusals"][0]


def test_plain_locust_runs_a_user_class_and_writes_the_report_of_its_plan(
    server: Server, environment: LoadEnvironment, tmp_path: Path
) -> None:
    plan, report = tmp_path / "plan.yaml", tmp_path / "report.json"
    plan.write_text(yaml.safe_dump({"fields": {"wan_t2v": SMALL}, "json": str(report)}))
    file = str(ROOT / "loadtests/locustfile.py")
    line = [
        "--headless",
        "--only-summary",
        "--host",
        server.grpc_url,
        "-u",
        "2",
        "-t",
        "5",
        "--plan",
        str(plan),
    ]
    done = environment.run("locust", "-f", file, "TextToVideo", *line)
    assert done.returncode == 0, done.stdout
    # The last ones end with their users.
    assert json.loads(report.read_text())["models"]["wan_t2v"]["whole"]["ended"]["answered"] > 0
    listed = environment.run("locust", "-f", file, "--list").stdout
    assert {"TextToVideo", "ImageToVideo", "UniversalWorld", "WakewordClips", "ImuStream"} <= set(
        listed.split()
    )


def test_plain_locust_is_answered_when_nothing_but_the_host_is_stated(
    server: Server, environment: LoadEnvironment, tmp_path: Path
) -> None:
    # Locust's time runs while it imports, too.
    line = f"--headless --only-summary --host {server.grpc_url} -u 2 -t 20 --csv {tmp_path / 'found'}"
    done = environment.run("locust", "-f", str(ROOT / "loadtests/locustfile.py"), *line.split())
    assert done.returncode == 0, done.stdout
    with (tmp_path / "found_stats.csv").open(newline="") as file:
        found = {row["Name"]: row for row in csv.DictReader(file)}
    # Of the models that users know, this server has the videos only.
    assert set(found) == {"wan_t2v", "Aggregated"}, done.stdout
    assert int(found["wan_t2v"]["Request Count"]) > 0 and found["wan_t2v"]["Failure Count"] == "0"


def test_plain_locust_says_so_when_the_host_is_not_triton(
    server: Server, environment: LoadEnvironment
) -> None:
    metrics = server.metrics_url.removesuffix("/metrics")
    line = f"--headless --only-summary --host {metrics} -u 1 -t 20"
    done = environment.run("locust", "-f", str(ROOT / "loadtests/locustfile.py"), *line.split())
    assert "this address answers HTTP, but it is not Triton" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout


def test_workers_make_the_load_of_their_master(
    server: Server, environment: LoadEnvironment, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = [environment.start("slipway", "load", "--worker-of", f"127.0.0.1:{port}") for _ in range(2)]
    try:
        line = f"{WAN} --arrivals constant --per-s 2 --seconds 9 --workers 2 --port {port}"
        done = environment.load(tmp_path, server.grpc_url, line)
        assert done.code == 0, done.output
        whole = done.whole("wan_t2v")
        # 18 are due, 9 of each worker; on a busy machine some come after the end.
        assert 9 < whole["sent"] <= 18 and set(whole["ended"]) == {"answered"}, whole
        assert [worker.wait(60) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
