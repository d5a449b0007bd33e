"""`slipway bench engines` on the head of a wake word, from flags to files. Nothing here asserts a time."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_benchmarks.engines import benchmark
from slipway_benchmarks.engines.benchmark import EAGER, FP32, INDUCTOR, INT8, TORCH_INT8
from slipway_cli import root
from slipway_export.families import family_named

pytestmark = pytest.mark.long

SMALL = "--family wakeword_head --component jarvis --axis batch=3 --rounds 2"
TORCHAO = importlib.util.find_spec("torchao") is not None


def bench(output: Path, *flags: str) -> int:
    return root.run(["bench", "engines", *SMALL.split(), *flags, "--output", str(output)])


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny head; its component has the name of its folder."""
    folder = tmp_path_factory.mktemp("heads") / "jarvis"
    folder.mkdir()
    family_named("wakeword_head").presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture(scope="module")
def output(head: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "new"
    # One engine that cannot run: torch.compile refuses to compile anything under this stance.
    with torch.compiler.set_stance("fail_on_recompile"):
        assert bench(folder, "--checkpoint", str(head), "--quiet") == 0
    return folder


@pytest.fixture(scope="module")
def report(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "engines.json").read_text())
    return found


def test_every_engine_has_its_rounds_of_the_same_call(report: dict[str, Any]) -> None:
    engines = report["engines"]
    assert list(engines) == [EAGER, FP32, INT8, *([TORCH_INT8] if TORCHAO else [])]
    for served in engines.values():
        assert [len(served[name]["values"]) for name in ("call_ms", "ratio")] == [2, 2]
    assert engines[EAGER]["ratio"]["values"] == [1.0, 1.0]
    assert report["inputs"] == {"embedding": [3, 64]}
    assert report["settings"]["sizes"] == {"batch": 3}
    assert {"cpu", "cores", "load_average_1_min", "versions"} <= report["machine"].keys()


def test_outputs_are_compared_with_eager(report: dict[str, Any]) -> None:
    engines = report["engines"]
    assert engines[EAGER]["relative_l2"] is None
    assert 0 < engines[FP32]["relative_l2"] < 1e-4
    assert engines[FP32]["psnr_db"] > 80
    for name in set(engines) & {INT8, TORCH_INT8}:
        assert 1e-4 < engines[name]["relative_l2"] < 8e-2


def test_memory_is_that_of_a_process_with_the_engine(report: dict[str, Any]) -> None:
    memory = {name: served["memory"] for name, served in report["engines"].items()}
    for found in memory.values():
        assert 0 < found["before_mib"] < found["held_mib"] <= found["peak_mib"]
    # Without torch.
    assert memory[FP32]["held_mib"] < memory[EAGER]["held_mib"]
    assert report["notes"] == []


def test_engine_that_cannot_run_leaves_its_reason(report: dict[str, Any]) -> None:
    assert set(report["not_run"]) == {INDUCTOR, *([] if TORCHAO else [TORCH_INT8])}
    assert "fail_on_recompile" in report["not_run"][INDUCTOR]


def test_chart_is_a_png(output: Path) -> None:
    assert (output / "engines.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--axis", "depth=2"), "axis must be one of batch for wakeword_head, got depth"),
        (("--axis", "batch"), "axis must be NAME=SIZE, each once, got 'batch'"),
        (("--axis", "batch=2"), "axis must be NAME=SIZE, each once, got 'batch=2'"),
        (("--component", "denoiser"), "component must be one of jarvis, got denoiser"),
        (("--engine", "tensorrt-rtx"), "with a precision (fp64, fp32,"),
        (("--engine", "torch:fp32"), "got 'torch:fp32'; try tensorrt-rtx:fp16"),
        (("--place", "tpu"), "place must be cpu or gpu, got tpu"),
    ],
)
def test_bench_is_refused_before_any_work_when_a_flag_is_wrong(
    flags: tuple[str, ...],
    said: str,
    head: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench(tmp_path, "--checkpoint", str(head), *flags) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_chosen_engines_alone_are_measured_and_a_missed_gate_names_each(
    head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "compute_capabilities", list)
    chosen = ("portable:fp32", "portable:int8", "tensorrt-rtx:fp32", "tensorrt:fp32")
    flags = [part for engine in chosen for part in ("--engine", engine)]
    assert bench(tmp_path, "--checkpoint", str(head), *flags, "--least-psnr-db", "70") == 1
    error = capsys.readouterr().err
    assert "least-psnr-db must be at least 70 for portable int8, got" in error
    assert "70 for portable fp32" not in error
    found = json.loads((tmp_path / "engines.json").read_text())
    assert list(found["engines"]) == [EAGER, "portable fp32", "portable int8"]
    assert found["not_run"] == {
        f"{engine} fp32": f"engine {engine} must run on an NVIDIA GPU, got a machine without one"
        for engine in ("tensorrt-rtx", "tensorrt")
    }
