"""What the video benchmark leaves behind, from figures that are given."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from rich.console import Console

from slipway_benchmarks.chart import draw_video
from slipway_benchmarks.pipelines.video import (
    DIFFUSERS,
    IN_PROCESS,
    TRITON,
    VideoResult,
    VideoTimes,
    compare,
    print_video,
    step_ms,
    video_json,
)
from slipway_benchmarks.stats import ratios, summarize
from slipway_client import Progress
from slipway_loadtests.json_report import write_json

FRAMES = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
TAKEN = {
    DIFFUSERS: VideoTimes([300.0, 330.0, 360.0], frames=FRAMES),
    IN_PROCESS: VideoTimes([150.0, 150.0, 150.0], [100.0, 100.0, 100.0], FRAMES),
    TRITON: VideoTimes([200.0, 165.0, 150.0], [110.0, 120.0, 100.0], FRAMES ^ 1, hit_rate=0.25),
}
RESULT = VideoResult(
    compare(TAKEN),
    summarize(ratios(TAKEN[TRITON].step_ms, TAKEN[IN_PROCESS].step_ms)),
    {5: 400.0, 21: 404.0, 41: 408.0},
)


def test_time_per_step_is_the_median_between_progress_events() -> None:
    events = [Progress(step, 4, at) for step, at in enumerate((5.0, 5.1, 5.4, 5.6), 1)]
    assert round(step_ms([*events, "the result"]), 3) == 200.0


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
    assert found["subjects"][DIFFUSERS]["quality"] is None
    assert found["peak_memory_mib"] == {"5": 400.0, "21": 404.0, "41": 408.0}


def test_frames_are_compared_with_those_of_diffusers() -> None:
    same, other = (RESULT.subjects[name].quality for name in (IN_PROCESS, TRITON))
    assert same and same.psnr_db is None
    assert other and round(other.psnr_db or 0, 1) == 48.1  # every pixel off by one


def test_tables_show_ratios_quality_and_memory_when_printed() -> None:
    text = io.StringIO()
    print_video(Console(file=text, width=120), RESULT)
    for shown in ("1.100", "1.020", "2.00 (1.50 to 2.40)", "identical", "48.1 dB", "0.25"):
        assert shown in text.getvalue()


def test_chart_is_a_png_when_drawn(tmp_path: Path) -> None:
    draw_video(RESULT, tmp_path / "video.png")
    assert (tmp_path / "video.png").read_bytes().startswith(b"\x89PNG\r\n")
