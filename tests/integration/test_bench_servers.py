"""`slipway bench video` and `quality` on a checkpoint of the user's, and on a server that runs already."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from slipway_benchmarks.pipelines.video_subjects import DIFFUSERS, IN_PROCESS, TRITON
from slipway_benchmarks.quality.benchmark import JUDGED
from slipway_cli import root
from slipway_recipes.judges.shapes import JUDGE_FILE, Judge
from slipway_recipes.wan_t2v import measures
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

SHORT = "--rounds 1 --size 32x32 --frames 5 --steps 2"
WITH_INTERVAL = f"{TRITON}, guidance_stop 0.5"


def bench(output: Path, *more: str) -> dict[str, Any]:
    assert root.run(["bench", "video", *SHORT.split(), "--output", str(output), *more]) == 0
    found: dict[str, Any] = json.loads((output / "video.json").read_text())
    return found


def test_checkpoint_is_exported_served_and_compared_with_diffusers(one_expert: Path, tmp_path: Path) -> None:
    found = bench(tmp_path, "--checkpoint", str(one_expert), "--quiet")
    assert list(found["subjects"])[:3] == [DIFFUSERS, IN_PROCESS, TRITON]
    assert found["settings"]["checkpoint"] == str(one_expert)
    assert list(found["peak_memory_mib"]) == ["5", "21", "41"]
    assert (found["not_run"], found["notes"]) == ({}, [])
    assert all(subject["denoise_ms"]["min"] > 0 for subject in found["subjects"].values())
    quality = found["subjects"][TRITON]["quality"]
    assert quality["psnr_db"] is None or quality["psnr_db"] > 40


def test_running_server_is_measured_alone_and_what_is_left_out_is_said(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench(tmp_path, "--url", server.grpc_url)
    assert list(found["subjects"]) == [TRITON, WITH_INTERVAL]
    assert found["subjects"][TRITON]["quality"] is None
    assert (found["step_ratio"], found["peak_memory_mib"]) == (None, {})
    assert all("cache_threshold must" in reason for reason in found["not_run"].values())
    assert len(found["not_run"]) == 2  # The server's export has no first-block cache.
    printed = capsys.readouterr().out
    assert "diffusers was left out: it needs --checkpoint too" in printed
    assert f"{TRITON} ÷ it" in printed
    assert (tmp_path / "video.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_running_server_is_compared_with_diffusers_when_its_checkpoint_is_given(
    server: Server, checkpoint: Path, tmp_path: Path
) -> None:
    found = bench(tmp_path, "--url", server.grpc_url, "--checkpoint", str(checkpoint), "--quiet")
    assert list(found["subjects"]) == [DIFFUSERS, TRITON, WITH_INTERVAL]
    quality = found["subjects"][TRITON]["quality"]
    assert quality["psnr_db"] is None or quality["psnr_db"] > 40
    assert "left out: they need an export" in found["notes"][0]


def test_video_that_a_server_refuses_ends_the_run(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        root.run(["bench", "video", "--url", server.grpc_url, "--size", "1280x720", "-o", str(tmp_path)]) == 2
    )
    assert "height must be" in capsys.readouterr().err


@pytest.fixture
def judged_checkpoint(checkpoint: Path, tmp_path: Path) -> Path:
    """The served checkpoint with a judge beside it, which has learned nothing."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "judged"))
    save_file(Judge().state_dict(), folder / JUDGE_FILE)
    return folder


def test_quality_tells_what_videos_of_a_server_show_plainly_and_with_shortcuts(
    server: Server, judged_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "JUDGED_RENDERS", 20)
    line = f"bench quality --url {server.grpc_url} --checkpoint {judged_checkpoint} --samples 2 --steps 2 -q"
    assert root.run([*line.split(), "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "quality.json").read_text())
    assert list(found["subjects"]) == ["served", "served, guidance_stop 0.5"]
    judge = found["references"]["the judge, on renders"]
    for shown in (judge, *found["subjects"].values()):
        assert list(shown)[:4] == ["colour", "shape", "motion", "all"]
        assert all(0 <= shown[word] <= 1 for word in judge)
    assert "PSNR, dB" not in found["subjects"]["served"]
    assert found["subjects"]["served, guidance_stop 0.5"]["PSNR, dB"] > 10
    assert all("cache_threshold must" in reason for reason in found["not_run"].values())
    assert len(found["not_run"]) == 2
    for name in ("quality.png", "quality_videos.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", f"checkpoint must have {JUDGE_FILE} beside it"),
        ("--url localhost:1 --precision int8", "precision must be left out with --url"),
        ("--precision text_encoder=fp31", "or NAME=PRECISION for a component, got 'text_encoder=fp31'"),
        ("--family wan", f"family must be one of {', '.join(JUDGED)}, got wan"),
        ("--family airimu --steps 4", "steps must be left out for airimu, got 4"),
    ],
)
def test_quality_is_refused_where_nothing_could_be_judged(
    flags: str, said: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["bench", "quality", "--checkpoint", str(checkpoint), *flags.split(), "--output", str(tmp_path)]
    assert root.run(line) == 2
    assert said in capsys.readouterr().err
