"""`slipway soak` in small: traffic and kills on a real Triton, the leak that it must catch, the report."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_fixtures import affine, any_port, tensor, write_model
from soaked_program import CountRequest

from slipway_cli.root import run
from slipway_loadtests.soak import report, traffic
from slipway_loadtests.soak.chart import draw_soak
from slipway_loadtests.soak.resources import server_at
from slipway_loadtests.soak.running import Options, soak, soak_at
from slipway_loadtests.soak.traffic import FAILED
from slipway_loadtests.soak.verdict import counts
from slipway_loadtests.soak.workload import Ask, Kind
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

ADAPTER = """
import triton_python_backend_utils as pb_utils

from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
"""
COUNTING = Kind("counting", 1, lambda seed: Ask(CountRequest(seed + 2)), {"last": lambda _: 0})


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one model that streams."""
    repository = tmp_path_factory.mktemp("soaked") / "models"
    config = tensor("input", "last", "INT64", "[1]") + tensor("output", "number", "INT64", "[1]")
    config += "model_transaction_policy { decoupled: true }\n"
    config += 'parameters { key: "program" value { string_value: "soaked_program:Counting" } }\n'
    version = write_model(repository, "counting", None, config, backend="python")
    (version / "model.py").write_text(ADAPTER)
    shutil.copy(Path(__file__).with_name("soaked_program.py"), version)
    return repository


def test_every_failure_is_explained_when_processes_are_killed_under_traffic(
    counting: Path, tmp_path: Path
) -> None:
    result = soak(counting, [COUNTING], Options(requests=300, callers=4, kill_every=100, rest_s=0))
    # What a stub holds after a few requests more or less says nothing of a leak.
    broken = [words for words in result.broken if not words.startswith("memory at the end")]
    assert not broken, [each for each in result.run.sent if each.ended == FAILED]
    assert len(result.run.sent) == 300 and result.run.kills
    assert all(each.back_s is not None and each.model == "counting" for each in result.run.kills)
    assert {"bad, right", "good, right", "left, right"} <= set(counts(result.run))
    written = json.loads(json.dumps(report.soak_json(result, {}), allow_nan=False))
    assert written["requests"] == 300 and len(written["kills"]) == len(result.run.kills)
    draw_soak(result, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 0
    assert any("kills" in line for line in report.lines(result))


def test_answers_other_than_the_first_are_wrong_when_a_running_server_changes_its_mind(
    counting: Path,
) -> None:
    numbers = iter(range(2, 90))
    fickle = replace(COUNTING, make=lambda _: Ask(CountRequest(next(numbers))))
    with Server(any_port(counting)) as server:
        assert server_at(server.http_url) == server_at(server.grpc_url) == (server.grpc_url, server.server_id)
        options = Options(requests=20, callers=1, rest_s=0)
        result = soak_at(*server_at(f"http://{server.http_url}"), [fickle], options)
        assert server.is_alive()
    assert any("no answer may be wrong" in words for words in result.broken)
    assert result.run.samples[-1].memory_bytes > 0 and result.run.stop_s is None


def test_failures_are_explained_when_a_server_that_is_not_ours_dies_and_is_started_anew(
    counting: Path,
) -> None:
    with Server(any_port(counting), warn=lambda _: None) as server:
        pid, asked = server.pid or 0, itertools.count()

        def make(seed: int) -> Ask:
            if next(asked) == 50:
                os.kill(pid, signal.SIGKILL)
            return COUNTING.make(seed)

        options = Options(requests=300, callers=4, rest_s=0)
        result = soak_at(*server_at(server.grpc_url), [replace(COUNTING, make=make)], options)
    broken = [words for words in result.broken if not words.startswith("memory at the end")]
    assert not broken and counts(result.run)["good, failed"] > 0
    # Triton 2.51 may die of cut calls as well.
    assert result.run.deaths and all(death.back_s is not None for death in result.run.deaths)


def test_every_failure_is_explained_when_processes_of_a_server_that_is_not_ours_are_killed(
    counting: Path,
) -> None:
    with Server(any_port(counting)) as server:
        options = Options(requests=300, callers=4, kill_every=100, rest_s=0)
        result = soak_at(*server_at(server.grpc_url), [COUNTING], options)
    broken = [words for words in result.broken if not words.startswith("memory at the end")]
    assert not broken, [each for each in result.run.sent if each.ended == FAILED]
    assert result.run.kills and all(each.back_s is not None for each in result.run.kills)


@pytest.fixture(scope="module")
def without_traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a model that no soak asks."""
    repository = tmp_path_factory.mktemp("leaking") / "models"
    tensors = tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
    write_model(repository, "affine", affine(), f"max_batch_size: 8\n{tensors}")
    return repository


def test_leak_is_caught_and_reported(
    without_traffic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Hundreds of cut calls a second now and then end Triton 2.51, which a soak rightly holds against it.
    monkeypatch.setattr(traffic, "_LEFT_SHARE", 0.0)
    line = f"soak --repository {without_traffic} --minutes 0.25 --leak --callers 2 --slowing 1000000"
    code = run([*line.split(), "--output", str(tmp_path)])
    said = capsys.readouterr()
    assert code == 0, said
    assert "memory, MiB: " in said.out and "not flat" in said.out
    written: Mapping[str, Any] = json.loads((tmp_path / "soak.json").read_text())
    assert written["models"] == ["leaking"] and written["lines"]["memory, MiB"]["flat"] is False
    assert written["kept"] and (tmp_path / "soak.png").is_file() and (tmp_path / "tritonserver.log").is_file()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "repository or url must be given, one of them"),
        ("--repository r --url localhost:1", "repository or url must be given, one of them"),
        ("--repository r --minutes 0", "minutes must be above 0 and without requests"),
        ("--repository r --minutes 1 --requests 5", "minutes must be above 0 and without requests"),
        ("--repository r --kill-every 5", "kill_every must come with requests, got 5 without"),
        ("--url localhost:1 --kill-every 5", "kill_every must come with requests, got 5 without"),
        ("--url localhost:1 --leak", "leak must come with repository and minutes"),
        ("--repository r --limit-s 0", "limit_s must be above 0, got 0"),
        ("--repository r --field frames=5", "soak: field must be MODEL.FIELD=VALUE"),
        ("--repository r --field wan.frames=5", "soak: field must be of one of wan_t2v, "),
        ("--repository r --field wan_t2v.frame=5", "soak: fields of wan_t2v must be of"),
        (
            "--url grpc://localhost:1",
            "soak: url must be of a server that `slipway serve` runs on this machine",
        ),
    ],
)
def test_flags_are_refused_by_name(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["soak", *line.split()]) == 2
    assert message in capsys.readouterr().err
