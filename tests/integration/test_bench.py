"""`slipway bench denoiser` at a very small size, from flags to files. Nothing here asserts a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slipway_cli import root

pytestmark = pytest.mark.long

SMALL = (
    "--layers 1 --heads 2 --head-dim 24 --ffn-dim 96 --text-dim 32 --text-tokens 16 --size 48x32 --frames 5"
    " --rounds 2 --steps 3 --decode"
)


def bench(flags: str, output: Path) -> int:
    return root.run(["bench", "denoiser", *SMALL.split(), *flags.split(), "--output", str(output)])


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "new"
    # One subject that cannot run: torch.compile refuses to compile anything under this stance.
    with torch.compiler.set_stance("fail_on_recompile"):
        assert bench("--compile --precision fp32 --precision int8 --memory-tokens 64 --quiet", folder) == 0
    return folder


@pytest.fixture(scope="module")
def report(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "denoiser.json").read_text())
    return found


def test_report_says_what_was_measured_on_what(report: dict[str, Any]) -> None:
    assert report["benchmark"] == "denoiser"
    assert report["case"]["latents"] == [2, 16, 2, 4, 6]
    assert report["case"]["tokens"] == 12
    assert report["settings"] == {"rounds": 2, "steps": 3, "decoded": True}
    assert {"cpu", "cores", "load_average_1_min", "versions"} <= report["machine"].keys()


def test_every_subject_has_its_rounds_and_ratios(report: dict[str, Any]) -> None:
    assert list(report["subjects"]) == ["eager", "onnx fp32", "onnx int8"]
    for subject in report["subjects"].values():
        assert [len(subject[name]["values"]) for name in ("call_ms", "call_ratio")] == [2, 2]
        assert [len(subject[name]["values"]) for name in ("step_ms", "step_ratio")] == [3, 3]
        assert subject["call_ratio"]["min"] <= subject["call_ratio"]["median"] <= subject["call_ratio"]["max"]
    assert report["subjects"]["eager"]["call_ratio"]["values"] == [1.0, 1.0]


def test_graph_is_close_to_eager_over_one_call_and_the_video(report: dict[str, Any]) -> None:
    quality = report["subjects"]["onnx fp32"]["quality"]
    assert quality["compared"] == "decoded video"
    assert 0 < quality["relative_l2"] < 1e-4
    assert quality["psnr_db"] is None or quality["psnr_db"] > 45
    assert quality["ssim"] > 0.999
    assert report["subjects"]["eager"]["quality"] is None


def test_int8_trajectory_is_near_eager(report: dict[str, Any]) -> None:
    quality = report["subjects"]["onnx int8"]["quality"]
    assert 1e-4 < quality["relative_l2"] < 8e-2
    assert 30 < quality["psnr_db"] < 100


def test_ceiling_is_made_in_the_same_rounds(report: dict[str, Any]) -> None:
    assert len(report["ceiling"]["values"]) == 2
    assert report["ceiling"]["min"] > 0


def test_lpips_is_either_measured_or_said_to_be_missing(report: dict[str, Any]) -> None:
    measured = report["subjects"]["onnx fp32"]["quality"]["lpips"] is not None
    assert measured != any("LPIPS was not measured" in note for note in report["notes"])


def test_nodes_of_a_block_are_part_of_all(report: dict[str, Any]) -> None:
    nodes = report["subjects"]["onnx fp32"]["nodes"]
    assert 0 < nodes["per_block"] < nodes["total"] == sum(nodes["operators"].values())


def test_memory_of_one_call_is_measured_for_every_subject(report: dict[str, Any]) -> None:
    for subject in report["subjects"].values():
        memory = subject["memory"]
        (point,) = memory["points"]
        assert point["tokens"] == 64
        assert 0 < point["before_mib"] <= point["peak_mib"]
        assert (memory["fit"], memory["failed"]) == (None, {})


def test_subject_that_cannot_run_leaves_its_reason(report: dict[str, Any]) -> None:
    assert list(report["not_run"]) == ["torch.compile"]
    assert "fail_on_recompile" in report["not_run"]["torch.compile"]


def test_chart_is_a_png(output: Path) -> None:
    assert (output / "denoiser.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("flags", ["--size 30", "--frames 6", "--memory-tokens 100", "--case nope"])
def test_bench_is_refused_before_any_work_when_a_flag_is_wrong(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(flags, tmp_path / "never") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "never").exists()


def test_checkpoint_is_measured_with_its_own_weights(checkpoint: Path, tmp_path: Path) -> None:
    flags = "--size 48x32 --frames 5 --rounds 1 --steps 2 --no-compile --no-memory --precision fp32 --quiet"
    named = ["bench", "denoiser", "--checkpoint", str(checkpoint), *flags.split(), "--output", str(tmp_path)]
    assert root.run(named) == 0
    found = json.loads((tmp_path / "denoiser.json").read_text())
    assert found["case"]["name"] == f"checkpoint {checkpoint}"
    assert (found["case"]["layers"], found["case"]["text_tokens"]) == (2, 512)
    assert 0 < found["subjects"]["onnx fp32"]["quality"]["relative_l2"] < 1e-4
