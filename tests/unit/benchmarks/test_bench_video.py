"""What the video benchmark leaves behind, from figures that are given."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from slipway_benchmarks.chart import draw_video
from slipway_benchmarks.gates import GateMissed
from slipway_benchmarks.pipelines import video
from slipway_benchmarks.pipelines.step_times import denoise_ms, step_ends_s, step_ms
from slipway_benchmarks.pipelines.video import REQUEST, VideoOptions, VideoResult, compare
from slipway_benchmarks.pipelines.video_cases import case_named
from slipway_benchmarks.pipelines.video_report import check_video_gates, print_video, video_json
from slipway_benchmarks.pipelines.video_subjects import DIFFUSERS, IN_PROCESS, TRITON, VideoTimes
from slipway_benchmarks.stats import ratios, summarize
from slipway_cli import root
from slipway_client import Progress
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_loadtests.json_report import write_json
from slipway_serving.protocol.errors import InvalidRequest

FRAMES = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
TAKEN = {
    DIFFUSERS: VideoTimes([300.0, 330.0, 360.0], frames=FRAMES),
    IN_PROCESS: VideoTimes([150.0, 150.0, 150.0], [100.0, 100.0, 100.0], FRAMES),
    TRITON: VideoTimes([200.0, 165.0, 150.0], [110.0, 120.0, 100.0], FRAMES ^ 1, 0.25, [140.0, 130.0, 120.0]),
}
TAKEN[DIFFUSERS].denoise_ms = [280.0, 260.0, 300.0]
RESULT = VideoResult(
    compare(TAKEN),
    summarize(ratios(TAKEN[TRITON].step_ms, TAKEN[IN_PROCESS].step_ms)),
    {5: 400.0, 21: 404.0, 41: 408.0},
)


def test_time_per_step_is_the_median_between_progress_events() -> None:
    events = [Progress(step, 4, at) for step, at in enumerate((5.0, 5.1, 5.4, 5.6), 1)]
    ends_s = step_ends_s([Progress(0, 0, 0.0, phase="waiting"), *events, "the result"])
    assert ends_s == [5.0, 5.1, 5.4, 5.6]
    assert round(step_ms(ends_s), 3) == 200.0


def test_first_step_counts_as_the_median_of_the_others_in_the_time_of_denoising() -> None:
    assert round(denoise_ms([5.0, 5.1, 5.4, 5.6]), 3) == 800.0


def test_report_has_every_figure_when_written(tmp_path: Path) -> None:
    write_json(video_json(RESULT, {"cpu": "a"}), tmp_path / "video.json")
    found = json.loads((tmp_path / "video.json").read_text())
    assert found["step_ratio"] == {"min": 1.0, "median": 1.1, "max": 1.2, "values": [1.1, 1.2, 1.0]}
    assert list(found["subjects"]) == [DIFFUSERS, IN_PROCESS, TRITON]
    assert found["subjects"][TRITON]["ratio"] == {
        "min": 1.5,
        "median": 2.0,
        "max": 2.4,
        "values": [1.5, 2.0, 2.4],
    }
    assert found["subjects"][TRITON]["denoise_ms"]["values"] == [140.0, 130.0, 120.0]
    assert found["subjects"][TRITON]["denoise_ratio"]["values"] == [2.0, 2.0, 2.5]
    assert found["subjects"][IN_PROCESS]["denoise_ms"] is None
    assert found["subjects"][DIFFUSERS]["quality"] is None
    assert found["peak_memory_mib"] == {"5": 400.0, "21": 404.0, "41": 408.0}


def test_frames_are_compared_with_those_of_diffusers() -> None:
    same, other = (RESULT.subjects[name].quality for name in (IN_PROCESS, TRITON))
    assert same and same.psnr_db is None
    assert other and round(other.psnr_db or 0, 1) == 48.1  # every pixel off by one


def test_tables_show_ratios_quality_and_memory_when_printed() -> None:
    text = io.StringIO()
    print_video(Console(file=text, width=160), RESULT)
    for shown in (
        "1.100",
        "1.020",
        "130",
        "2.00 (2.00 to 2.50)",
        "165",
        "2.00 (1.50 to 2.40)",
        "identical",
        "48.1 dB",
        "0.25",
    ):
        assert shown in text.getvalue()


def test_chart_is_a_png_when_drawn(tmp_path: Path) -> None:
    draw_video(RESULT, tmp_path / "video.png")
    assert (tmp_path / "video.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_gate_names_each_subject_that_is_below_it() -> None:
    options = VideoOptions(least_psnr_db=50.0, least_ssim=1.0)
    with pytest.raises(GateMissed) as error:
        check_video_gates(replace(RESULT, options=options))
    assert str(error.value).startswith(f"bench: least-psnr-db must be at least 50 for {TRITON}, got 48.1")
    assert f"least-ssim must be at least 1 for {TRITON}, got 0.99" in str(error.value)
    assert IN_PROCESS not in str(error.value)
    assert error.value.exit_code == 1


def test_gate_lets_a_result_pass_that_reaches_it() -> None:
    check_video_gates(replace(RESULT, options=VideoOptions(least_psnr_db=48.0, least_ssim=0.9)))


def test_named_case_sets_every_field_of_the_request() -> None:
    case = case_named("mlperf-wan2.2")
    request = case.request(REQUEST, {"size": "1280x720", "frames": None, "steps": 20})
    assert (request.width, request.height, request.frames, request.steps) == (1280, 720, 81, 20)
    assert (request.guidance_scale, request.guidance_scale_2, request.seed) == (4.0, 3.0, 42)
    assert case.boundary_ratio == 0.875


def test_case_refuses_a_checkpoint_with_another_boundary(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"boundary_ratio": 0.9}))
    with pytest.raises(
        InvalidRequest, match=r"boundary_ratio must be 0\.875 for case mlperf-wan2\.2, got 0\.9"
    ):
        case_named("mlperf-wan2.2").check(Checkpoint(tmp_path, "mine"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            "--case mlperf-wan2.2 --size 832x480 --steps 40",
            "size must be 1280x720 with --case mlperf-wan2.2, or left out, got 832x480 | steps must be 20",
        ),
        ("--case mlperf", "case must be one of mlperf-wan2.2, got mlperf"),
        ("--url localhost:1 --engine torch", "engine must be left out with --url"),
        ("--engine nothing", "engine must be one of"),
    ],
)
def test_video_is_refused_before_any_work_when_options_contradict(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(["bench", "video", *flags.split(), "--output", str(tmp_path / "never")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


def test_video_refuses_tensorrt_on_a_machine_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(video, "compute_capabilities", list)
    line = ["bench", "video", "--engine", "denoiser_high=tensorrt-rtx", "--output", str(tmp_path)]
    assert root.run(line) == 2
    assert "engine tensorrt-rtx must run on an NVIDIA GPU, got a machine without one" in (
        capsys.readouterr().err
    )
