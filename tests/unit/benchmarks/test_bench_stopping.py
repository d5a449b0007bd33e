"""The arithmetic of the stopping benchmark, and which videos it asks for."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from slipway_benchmarks.chart import draw_stopping
from slipway_benchmarks.pipelines.stopping import (
    REQUEST,
    StoppingOptions,
    StoppingResult,
    compare_checkpoints,
    compare_drafts,
    measure_stops,
)
from slipway_benchmarks.pipelines.stopping_figures import Growth, drafts_found, step_ratios, stops_found
from slipway_benchmarks.pipelines.stopping_report import print_stopping, stopping_json
from slipway_benchmarks.pipelines.watched_videos import WatchedVideo, watch_video
from slipway_benchmarks.processes import Tree
from slipway_cli import root
from slipway_client import Progress, TextToVideoRequest
from slipway_loadtests.json_report import write_json
from slipway_serving.protocol.diffusion.stopping import StatePart, Stopped
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.protocol.events import WAITING, Event
from slipway_serving.protocol.snapshots.parts import MAGIC

OPTIONS = StoppingOptions(videos=4, continued=2, runs=3, stops=20)


class Server:
    """Maker of videos without a server: each step takes 1 s, what comes before and after it 0.5 s each.

    With checkpoints, a step takes 1.1 s. A continuation takes 0.25 s more before its first step. Each step
    costs 2 s of CPU time, and the checkpoints of a video 3 s.
    """

    def __init__(self) -> None:
        self.asked: list[TextToVideoRequest] = []

    def ask(self, request: TextToVideoRequest) -> WatchedVideo:
        self.asked.append(request)
        state = request.continue_from
        done = 0 if state is None else int(state.removeprefix(MAGIC))
        last = request.stop_after_step or request.steps
        step_s = 1.1 if request.checkpoint_every_steps else 1.0
        before_s = 0.5 if state is None else 0.75
        ends_s = tuple(before_s + step_s * number for number in range(1, last - done + 1))
        kept = (
            MAGIC + str(last).encode() if request.stop_after_step or request.checkpoint_every_steps else None
        )
        cpu_s = 2.0 * (last - done) + (3.0 if request.checkpoint_every_steps else 0.0)
        return WatchedVideo(0.0, ends_s, ends_s[-1] + 0.5, request.stop_after_step, kept, cpu_s)


def no_report(_: str) -> None:
    pass


def events(*sent: Event) -> Iterator[Event]:
    yield from sent


def test_times_are_those_of_the_callers_clock_when_a_video_is_watched() -> None:
    clock = iter([10.0, 10.5, 12.0, 13.0, 15.0, 15.5, 16.0])
    video = watch_video(
        events(
            Progress(0, 4, 0.0, phase=WAITING),
            Progress(1, 4, 0.0),
            Progress(2, 4, 0.0),
            StatePart(b"ab", 0, 2, 2),
            StatePart(b"c", 1, 2, 2),
            Stopped("step", 2, 4),
        ),
        lambda: next(clock),
    )
    assert (video.sent_s, video.step_ends_s, video.ended_s) == (10.0, (12.0, 13.0), 16.0)
    assert (video.state, video.stopped_step) == (b"abc", 2)
    assert (video.whole_s, video.first_step_s, video.steps_s) == (6.0, 2.0, (1.0,))
    assert (video.between_steps_s, video.after_steps_s) == (1.0, 3.0)


def test_last_whole_state_counts_when_checkpoints_come_one_after_the_other() -> None:
    parts = [StatePart(b"1", 0, 1, 5), StatePart(b"2", 0, 2, 10), StatePart(b"3", 1, 2, 10)]
    cut_off = StatePart(b"4", 0, 2, 15)
    assert watch_video(events(Progress(1, 20, 0.0), *parts, cut_off)).state == b"23"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([Progress(1, 2, 0.0), StatePart(b"1", 0, 3, 1), StatePart(b"3", 2, 3, 1)], "part 1 of a state"),
        ([Stopped("step", 0, 2)], "must report its steps"),
    ],
)
def test_video_is_refused_when_what_it_sends_is_incomplete(sent: list[Event], said: str) -> None:
    with pytest.raises(Unrecoverable, match=said):
        watch_video(events(*sent))


def test_expected_ratio_is_that_of_the_steps() -> None:
    assert StoppingOptions().expected_ratio == pytest.approx((10 * 10 + 3 * 20) / (10 * 30))


@pytest.mark.parametrize(("videos", "continued"), [(10, 3), (10, 10), (1, 1), (7, 5)])
def test_continued_drafts_are_spread_over_all_when_there_are_fewer(videos: int, continued: int) -> None:
    numbers = StoppingOptions(videos=videos, continued=continued).continued_numbers
    assert len(numbers) == continued
    assert numbers <= set(range(videos))


def test_options_are_refused_when_they_contradict(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as error:
        StoppingOptions(tmp_path, videos=2, continued=3, stop_after=29, checkpoint_every=30)
    for said in (
        "continued must be 1 to 2, the number of videos, got 3",
        "stop-after must be 2 to 28, two below steps, got 29",
        "checkpoint-every must be 2 to 28, two below steps, got 30",
        "repository must contain the model wan_t2v",
    ):
        assert said in str(error.value)


def test_video_is_refused_when_it_is_too_short_to_be_stopped_twice() -> None:
    with pytest.raises(InvalidRequest, match="steps must be at least 5, got 4"):
        StoppingOptions(request=replace(REQUEST, steps=4), stop_after=2)


def test_command_is_refused_before_any_work_when_options_contradict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(["bench", "stopping", "--steps", "8", "--output", str(tmp_path / "never")]) == 2
    assert "stop-after must be 2 to 6" in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


def test_drafts_and_whole_videos_alternate_when_they_are_compared() -> None:
    server = Server()
    found = compare_drafts(server.ask, OPTIONS, no_report)
    kinds = [
        "draft" if each.draft else "continued" if each.continue_from else "whole" for each in server.asked
    ]
    both = ["draft", "whole", "whole", "draft", "continued"]
    assert kinds == [*both, *both]
    assert [each.seed for each in server.asked] == [1, 1, 2, 2, 2, 3, 3, 4, 4, 4]
    # 4 drafts of 11 s and 2 continuations of 21.25 s beside 4 videos of 31 s.
    assert found.ratio == pytest.approx((4 * 11 + 2 * 21.25) / (4 * 31))
    assert found.steps_ratio == pytest.approx(OPTIONS.expected_ratio)
    assert found.cpu_ratio == pytest.approx(OPTIONS.expected_ratio)
    assert found.draft_ratio.values == pytest.approx([11 / 31] * 4)
    assert found.continued_ratio.values == pytest.approx([21.25 / 31] * 2)


def test_ratio_of_each_draft_is_that_with_its_own_video_when_the_machine_slows_down() -> None:
    fast = WatchedVideo(0.0, (1.0, 2.0), 3.0, cpu_s=2.0)
    slow = WatchedVideo(0.0, (4.0, 8.0), 12.0, cpu_s=2.0)
    found = drafts_found([fast, slow], {1: slow}, [fast, slow])
    assert found.draft_ratio.values == (1.0, 1.0)
    assert found.continued_ratio.values == (1.0,)
    assert found.ratio == pytest.approx(27 / 15)


def test_checkpoints_are_compared_with_none_in_turn() -> None:
    server = Server()
    found = compare_checkpoints(server.ask, OPTIONS, no_report)
    every = [each.checkpoint_every_steps for each in server.asked]
    assert every == [5, None, None, 5, 5, None]
    assert found.ratio.values == pytest.approx([1.1] * 3)
    assert found.cpu_ratio.values == pytest.approx([63 / 60] * 3)
    assert found.step_ratio.values == pytest.approx([1.0] * 15)
    assert found.plain_ratio.values == pytest.approx([1.0] * 15)
    assert found.step_s.median == pytest.approx(1.0)
    assert found.state_bytes == len(MAGIC) + 2


def test_step_after_a_checkpoint_is_compared_with_the_steps_around_it() -> None:
    ends_s, now_s = [], 0.0
    for step in range(1, 13):
        now_s += 3.0 if step in (6, 11) else 2.0  # The steps after checkpoints 5 and 10.
        ends_s.append(now_s)
    assert step_ratios(WatchedVideo(0.0, tuple(ends_s), now_s), 5) == pytest.approx([1.5, 1.5])
    # No step follows the one after checkpoint 10.
    assert step_ratios(WatchedVideo(0.0, tuple(ends_s[:11]), now_s), 5) == pytest.approx([1.5])


def test_each_continuation_makes_two_steps_and_memory_is_read_after_it() -> None:
    server, read = Server(), iter(range(1000))
    found = measure_stops(server.ask, OPTIONS, no_report, lambda: (next(read), 0))
    stops = [each.stop_after_step for each in server.asked if each.continue_from is not None]
    assert len(stops) == 12 + OPTIONS.stops
    assert [(each.steps, each.stop_after_step) for each in server.asked[-OPTIONS.stops :]] == (
        [(2, None)] * OPTIONS.stops
    )
    assert stops[:14] == [*range(4, 30, 2), 4]
    assert found.continue_s.values == pytest.approx([1.75] * OPTIONS.stops)
    assert found.added_s.median == pytest.approx(0.75)
    assert found.stop_s.median == pytest.approx(0.5)
    assert found.pipeline.read_bytes == tuple(range(OPTIONS.stops + 1))
    assert found.pipeline.line.slope == pytest.approx(1.0)
    assert found.plain_pipeline.read_bytes[0] == OPTIONS.stops + 1


def test_growth_is_the_slope_over_the_stops_when_memory_grows() -> None:
    found = Growth.of([100, 110, 120, 130])
    assert found.line.slope == pytest.approx(10.0)


@pytest.fixture
def result() -> StoppingResult:
    server = Server()
    video = WatchedVideo(0.0, (1.5, 2.0), 2.25)
    stopped = [(2**20, 2**21), (2**20, 2**21), (2**20 + 2048, 2**21)]
    stops = stops_found([video, video], stopped, [(0, 0), (512, 0), (1024, 0)])
    return StoppingResult(
        compare_drafts(server.ask, OPTIONS, no_report),
        compare_checkpoints(server.ask, OPTIONS, no_report),
        stops,
        replace(OPTIONS, request=replace(REQUEST, height=64)),
    )


def test_tables_and_json_have_every_figure_when_a_run_is_shown(
    result: StoppingResult, tmp_path: Path
) -> None:
    text = io.StringIO()
    print_stopping(Console(file=text, width=160), result)
    for shown in (
        "preset small: 128x64, 17 frames, 30 steps",
        "4 drafts of 10 steps, 2 continued ÷ 4 whole videos",
        "0.698",
        "0.667",
        "1.100 (1.100 to 1.100)",
        "1500 (1500 to 1500)",
        "1000 (1000 to 1000)",
        "250 (250 to 250)",
        "+1.0 KiB a request",
        "+0.5 KiB a request",
        "+0.0 KiB a request",
    ):
        assert shown in text.getvalue()
    assert "try a larger --size" not in text.getvalue()
    write_json(stopping_json(result, {"cpu": "a"}), tmp_path / "stopping.json")
    found = json.loads((tmp_path / "stopping.json").read_text())
    assert (found["benchmark"], found["machine"]) == ("stopping", {"cpu": "a"})
    assert found["settings"]["request"]["height"] == 64
    assert found["settings"]["repository"] is None
    assert found["expected_ratio"] == pytest.approx(2 / 3)
    assert found["stops"]["pipeline"]["line"]["slope"] == pytest.approx(1024.0)


def test_note_says_so_when_a_step_is_too_short(result: StoppingResult) -> None:
    text = io.StringIO()
    quick = replace(result.checkpoints, step_s=replace(result.checkpoints.step_s, median=0.02))
    print_stopping(Console(file=text, width=160), replace(result, checkpoints=quick))
    assert "a step took 20 ms" in text.getvalue()


def test_chart_is_a_png_when_drawn(result: StoppingResult, tmp_path: Path) -> None:
    draw_stopping(result, tmp_path / "stopping.png")
    assert (tmp_path / "stopping.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_memory_is_that_of_the_processes_and_none_of_a_model_that_is_not_served() -> None:
    with closing(Tree(os.getpid())) as tree:
        assert tree.own_bytes() > 2**20
        assert tree.own_bytes("served_by_nobody") == 0
