"""The arithmetic of the gateway benchmark, and the order of its videos."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from slipway_benchmarks.chart import draw_gateway
from slipway_benchmarks.gateway.benchmark import REQUEST, GatewayOptions, GatewayResult
from slipway_benchmarks.gateway.crowd import CrowdCounts
from slipway_benchmarks.gateway.pairs import TimedVideo, compare_videos, fields_of_video, pairs_found
from slipway_benchmarks.gateway.report import gateway_json, print_gateway
from slipway_benchmarks.gateway.waiting_jobs import Look, QueueFound, QueueOptions, Times
from slipway_benchmarks.stats import quartiles
from slipway_client import TextToVideoRequest
from slipway_loadtests.json_report import write_json
from slipway_serving.protocol.errors import InvalidRequest


def test_videos_alternate_and_have_the_same_seeds_when_they_are_compared() -> None:
    made: list[tuple[str, int | None]] = []
    used = iter([1.0, 1.5, 2.0, 2.25, 3.0, 3.5])

    def maker(name: str, video: TimedVideo):  # type: ignore[no-untyped-def]
        def make(request: TextToVideoRequest) -> TimedVideo:
            made.append((name, request.seed))
            return video

        return make

    direct, through = TimedVideo(0.5, 9.0, 10.0), TimedVideo(0.6, 9.1, 10.2)
    found = compare_videos(
        maker("direct", direct),
        maker("gateway", through),
        lambda: next(used),
        replace(REQUEST, seed=7),
        3,
        lambda _: None,
    )
    assert made == [
        *(("direct", 7), ("gateway", 7)),
        *(("gateway", 8), ("direct", 8)),
        *(("direct", 9), ("gateway", 9)),
    ]
    assert found.finished_ratio.values == pytest.approx((1.02,) * 3)
    assert found.progress_ratio.values == pytest.approx((1.2,) * 3)
    assert found.after_steps_added_s.values == pytest.approx((0.1,) * 3)
    assert found.gateway_cpu_s.values == pytest.approx((0.5, 0.25, 0.5))


def test_ratio_is_that_of_each_pair_when_the_machine_slows_down() -> None:
    direct = [TimedVideo(1.0 * slow, 8.0 * slow, 10.0 * slow) for slow in (1, 2, 5)]
    through = [TimedVideo(1.1 * slow, 8.1 * slow, 10.1 * slow) for slow in (1, 2, 5)]
    found = pairs_found(direct, through, [0.1] * 3)
    assert found.finished_ratio.values == pytest.approx((1.01,) * 3)
    assert found.progress_ratio.median == pytest.approx(1.1)
    assert found.finished_added_s.median == pytest.approx(0.2)
    assert quartiles(found.progress_ratio.values) == pytest.approx((1.1, 1.1))


def test_percentiles_are_in_milliseconds() -> None:
    times = Times.of([number / 1000 for number in range(1, 101)])
    assert (times.count, times.max_ms) == (100, pytest.approx(100.0))
    assert (times.p50_ms, times.p99_ms) == (pytest.approx(50.5), pytest.approx(99.01))


def test_fields_of_a_job_are_those_of_the_direct_request() -> None:
    fields = fields_of_video(replace(REQUEST, seed=3))
    assert fields == {
        "model": "wan_t2v",
        "prompt": REQUEST.prompt,
        "size": "128x128",
        "num_frames": 17,
        "steps": 20,
        "seed": 3,
    }


def test_options_are_refused_when_they_contradict(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as error:
        GatewayOptions(tmp_path, queue=QueueOptions(jobs=10, watchers=6))
    for said in (
        "watchers must be at most half of jobs, 5, got 6",
        "repository must contain the model wan_t2v",
        "repository must contain the model wakeword_stream",
    ):
        assert said in str(error.value)
    with pytest.raises(InvalidRequest) as error:
        GatewayOptions(tmp_path, queue=QueueOptions(sockets=0))
    assert "wakeword" not in str(error.value)


@pytest.fixture
def result() -> GatewayResult:
    pairs = pairs_found([TimedVideo(1.0, 8.0, 10.0)] * 2, [TimedVideo(1.1, 8.1, 10.1)] * 2, [0.2, 0.3])
    times = Times.of([0.010, 0.020])
    quiet = Look(times, times, times, 120 << 20, 190 << 20, 0.2, 1.5)
    crowded = replace(quiet, memory_bytes=170 << 20)
    queue = QueueFound(110 << 20, times, 80.0, quiet, crowded, CrowdCounts(900, 200, 800, 50, 2, 0.1))
    return GatewayResult(pairs, 2.5, queue)


def test_tables_and_json_have_every_figure_when_a_run_is_shown(result: GatewayResult, tmp_path: Path) -> None:
    shown = io.StringIO()
    print_gateway(Console(file=shown, width=200), result)
    for said in (
        "preset small: 128x128, 17 frames, 20 steps, 20 pairs",
        "1.010 (1.010 to 1.010)",
        "1.100 (1.100 to 1.100)",
        "with 200 watchers, 50 sockets",
        "15.0, 19.5, 19.9, 20",
        "900 events and 800 messages",
        "refused 2 sockets",
    ):
        assert said in shown.getvalue(), said
    path = tmp_path / "gateway.json"
    write_json(gateway_json(result, {"cores": 2}), path)
    found = json.loads(path.read_text())
    assert found["pairs"]["finished_ratio"]["median"] == pytest.approx(1.01)
    assert found["queue"]["crowded"]["memory_bytes"] == 170 << 20
    assert found["settings"]["queue"]["jobs"] == 1000


def test_chart_is_a_png_when_drawn(result: GatewayResult, tmp_path: Path) -> None:
    draw_gateway(result, tmp_path / "gateway.png")
    assert (tmp_path / "gateway.png").read_bytes().startswith(b"\x89PNG\r\n")
