"""Drain benchmark: how long a server takes to stop its videos, beside one of their steps.

Two servers serve copies of a repository of Wan. Several videos run on the first one. It gets SIGTERM, stops
each video at its next step boundary and ends; the callers continue on the second server. The time from
SIGTERM to the end of the process is compared with the step of the same run, and every step is counted.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from slipway_benchmarks.processes import Serving, serving
from slipway_client import Client, Moved, Progress, RetryPolicy, TextToVideoRequest
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.slots.slots import SLOTS_PARAMETER
from slipway_serving.system.temporary_folders import TemporaryFolder

FAMILY, PRESET = "wan_t2v", "small"
REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=20, seed=1
)
_READY_TIMEOUT_S = 600
_PATIENT = RetryPolicy(budget_s=300)
# The first step of a video contains the encoding of its prompt, so steps are measured from the second on.
_STEPS_BEFORE = 4

Report = Callable[[str], None]


@dataclass(frozen=True)
class DrainResult:
    """Result of the drain benchmark.

    Attributes:
        videos: Number of videos.
        steps: Number of steps of a video.
        step_s: Median time of a step before SIGTERM, in seconds; the videos share the processor.
        exit_s: Time from SIGTERM to the end of `slipway serve`, in seconds.
        last_state_s: Time from SIGTERM to the last notice of a move, in seconds.
        steps_done: Steps that all callers saw done, on both servers.
        moves: Number of videos that the second server continued.
    """

    videos: int
    steps: int
    step_s: float
    exit_s: float
    last_state_s: float
    steps_done: int
    moves: int

    @property
    def ratio(self) -> float:
        """Time from SIGTERM to the exit ÷ the time of a step."""
        return self.exit_s / self.step_s


@dataclass
class _Video:
    """One video as its caller sees it."""

    request: TextToVideoRequest
    step_ends_s: list[float] = field(default_factory=list)
    moved_s: list[float] = field(default_factory=list)

    def run(self, urls: list[str], ready: threading.Barrier) -> None:
        with Client(urls, retry=_PATIENT) as client:
            for event in client.generate(self.request):
                if isinstance(event, Moved):
                    self.moved_s.append(time.monotonic())
                elif isinstance(event, Progress) and event.phase is None:
                    self.step_ends_s.append(time.monotonic())
                    if len(self.step_ends_s) == _STEPS_BEFORE:
                        ready.wait()


def run(repository: Path | None, request: TextToVideoRequest, videos: int, report: Report) -> DrainResult:
    """Serve a repository twice, and stop the first server while it works on videos.

    Args:
        repository: Exported repository with Wan; None to export the preset `small`.
        request: Request for the first video; the next ones count its seed up.
        videos: Number of videos, which the first server works on at a time.
        report: Callback that receives a line before each long step.

    Raises:
        SlipwayError: A server does not become ready, or a video is lost.
    """
    with TemporaryFolder("slipway-measurement-") as folder:
        if repository is None:
            repository = folder / "exported"
            report(f"exporting {PRESET}")
            run_export(family_named(FAMILY), ExportOptions(PRESET, repository))
        models = _with_slots(repository, folder / "models", videos)
        report("starting two servers")
        stopping = ["--on-stop", "checkpoint", "--exit-timeout-s", "300"]
        with (
            serving(models, _READY_TIMEOUT_S, folder / "first.log", stopping) as first,
            serving(models, _READY_TIMEOUT_S, folder / "second.log") as second,
        ):
            _warm_up(first, request, videos)
            report("the first server works on the videos, and is stopped")
            return _drain(first, second, request, videos)


def _drain(first: Serving, second: Serving, request: TextToVideoRequest, videos: int) -> DrainResult:
    every = [_Video(replace(request, seed=request.seed + number)) for number in range(videos)]
    ready = threading.Barrier(videos + 1)
    with ThreadPoolExecutor(videos) as pool:
        running = [pool.submit(video.run, [first.url, second.url], ready) for video in every]
        ready.wait()
        signalled_s = time.monotonic()
        first.process.send_signal(signal.SIGTERM)
        first.process.wait()
        exit_s = time.monotonic() - signalled_s
        for each in running:
            each.result()
    steps_s = [
        later - earlier for video in every for earlier, later in pairwise(video.step_ends_s[:_STEPS_BEFORE])
    ]
    moved_s = [moved_s for video in every for moved_s in video.moved_s]
    if not moved_s:
        raise Unrecoverable("bench: the second server must continue videos, got none; try more --steps")
    return DrainResult(
        videos,
        request.steps,
        statistics.median(steps_s),
        exit_s,
        max(moved_s) - signalled_s,
        sum(len(video.step_ends_s) for video in every),
        len(moved_s),
    )


def _warm_up(server: Serving, request: TextToVideoRequest, videos: int) -> None:
    """Send short videos, as many at a time as are measured, so that every instance loads its libraries."""
    short = replace(request, steps=1)
    with ThreadPoolExecutor(videos) as pool, Client(server.url, retry=_PATIENT) as client:
        for _ in range(2):
            for events in pool.map(lambda _: list(client.generate(short)), range(videos)):
                assert events


def _with_slots(repository: Path, target: Path, videos: int) -> Path:
    """Return a copy of a repository, by hard links, whose pipeline works on so many videos at a time."""
    shutil.copytree(repository, target, copy_function=os.link)
    file = target / FAMILY / "config.pbtxt"
    config = text_format.Parse(file.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    config.parameters[SLOTS_PARAMETER].string_value = str(videos)
    config.instance_group[0].count = videos + 1
    file.unlink()
    file.write_text(text_format.MessageToString(config), encoding="utf-8")
    return target
