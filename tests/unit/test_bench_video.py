"""What the video benchmark leaves behind, from figures that are given."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from clients import Progress
from loadtests.bench.chart import draw_video
from loadtests.bench.report import write_json
from loadtests.bench.stats import ratios, summarize
from loadtests.bench.video import VideoResult, print_video, step_ms, video_json

THROUGH, WITHIN = [110.0, 120.0, 100.0], [100.0, 100.0, 100.0]
RESULT = VideoResult(
    summarize(THROUGH),
    summarize(WITHIN),
    summarize(ratios(THROUGH, WITHIN)),
    {5: 400.0, 21: 404.0, 41: 408.0},
)


def test_time_per_step_is_the_median_between_progress_events() -> None:
    events = [Progress(step, 4, at) for step, at in enumerate((5.0, 5.1, 5.4, 5.6), 1)]
    assert round(step_ms([*events, "the result"]), 3) == 200.0


def test_report_has_every_figure_when_written(tmp_path: Path) -> None:
    write_json(video_json(RESULT, {"cpu": "a"}), tmp_path / "video.json")
    found = json.loads((tmp_path / "video.json").read_text())
    assert found["loop"]["ratio"] == {"min": 1.0, "median": 1.1, "max": 1.2, "values": [1.1, 1.2, 1.0]}
    assert found["loop"]["triton_ms"]["median"] == 110.0
    assert found["peak_memory_mib"] == {"5": 400.0, "21": 404.0, "41": 408.0}


def test_tables_show_ratio_and_memory_when_printed() -> None:
    text = io.StringIO()
    print_video(Console(file=text, width=120), RESULT)
    assert "1.100" in text.getvalue()
    assert "1.020" in text.getvalue()


def test_chart_is_a_png_when_drawn(tmp_path: Path) -> None:
    draw_video({"through Triton": RESULT.triton_ms}, RESULT.peak_memory_mib, tmp_path / "video.png")
    assert (tmp_path / "video.png").read_bytes().startswith(b"\x89PNG\r\n")
