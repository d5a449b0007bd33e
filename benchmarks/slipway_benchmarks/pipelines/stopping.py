"""Stopping benchmark: what drafts save, and what checkpoints, stops and continuations cost.

A server of its own serves an exported repository of Wan. In one run the caller measures four things:
drafts of which some are continued beside whole videos, in turn; the denoising loop with checkpoints beside
the same without, in turn; the time of each stop and of each continuation; and the memory of the server's
processes from stop to stop. Absolute times depend on the machine; read the ratios. On a busy machine, the
ratios of CPU time vary less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipway_benchmarks.pipelines.stopping_figures import (
    CheckpointsFound,
    DraftsFound,
    StopsFound,
    checkpoints_found,
    drafts_found,
    stops_found,
)
from slipway_benchmarks.pipelines.watched_videos import WatchedVideo, watch_video
from slipway_benchmarks.processes import Tree, serving
from slipway_client import Client, TextToVideoRequest
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_serving.protocol.errors import Unrecoverable, raise_all
from slipway_serving.system.temporary_folders import TemporaryFolder

FAMILY, PRESET = "wan_t2v", "small"
REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=30, seed=1
)
_READY_TIMEOUT_S = 600
# Steps from one stop to the next: the first shows the cost of continuing, the second is there to compare.
_STEPS_APART = 2
LEAST_STEPS = 2 * _STEPS_APART + 1
"""Least number of steps of a video that is stopped, continued and stopped again before its end."""
# Callers that together reach every instance of the pipeline, of which there are at most that many.
_WARM_UP_CALLERS = 6
# Continuations before memory is compared; they reach every instance of the pipeline.
_WARM_UP_STOPS = 12

Ask = Callable[[TextToVideoRequest], WatchedVideo]
Report = Callable[[str], None]


@dataclass(frozen=True)
class StoppingOptions:
    """Options of the stopping benchmark.

    Attributes:
        repository: Exported repository with Wan; None to export the preset `small`.
        request: Request for the first video; the next ones count its seed up.
        videos: Number of drafts, and of whole videos.
        continued: Number of drafts that are continued to the end.
        stop_after: Number of steps of a draft.
        checkpoint_every: Number of steps between two checkpoints.
        runs: Number of videos with checkpoints, and of videos without.
        stops: Number of continuations that are stopped again.

    Raises:
        InvalidRequest: Options do not fit each other; the message names each one.
    """

    repository: Path | None = None
    request: TextToVideoRequest = REQUEST
    videos: int = 10
    continued: int = 3
    stop_after: int = 10
    checkpoint_every: int = 5
    runs: int = 10
    stops: int = 100

    def __post_init__(self) -> None:
        steps, problems = self.request.steps, []
        if steps < LEAST_STEPS:
            problems.append(f"steps must be at least {LEAST_STEPS}, got {steps}")
        if not 1 <= self.continued <= self.videos:
            problems.append(
                f"continued must be 1 to {self.videos}, the number of videos, got {self.continued}"
            )
        if not 2 <= self.stop_after <= steps - 2:
            problems.append(f"stop-after must be 2 to {steps - 2}, two below steps, got {self.stop_after}")
        if not 2 <= self.checkpoint_every <= steps - 2:
            problems.append(
                f"checkpoint-every must be 2 to {steps - 2}, two below steps, got {self.checkpoint_every}"
            )
        if self.repository is not None and not (self.repository / FAMILY / "config.pbtxt").is_file():
            problems.append(
                f"repository must contain the model {FAMILY}, got {self.repository}; try"
                f" `slipway export {FAMILY} --checkpoint {PRESET} --repository {self.repository}`"
            )
        raise_all("bench", problems)

    @property
    def expected_ratio(self) -> float:
        """Steps of the drafts and of their continuations ÷ steps of the whole videos."""
        steps = self.request.steps
        drafts = self.videos * self.stop_after + self.continued * (steps - self.stop_after)
        return drafts / (self.videos * steps)

    @property
    def continued_numbers(self) -> frozenset[int]:
        """Numbers of the drafts that are continued, from 0, evenly spread over all."""
        places = range(1, 2 * self.continued, 2)
        return frozenset(self.videos * place // (2 * self.continued) for place in places)


@dataclass(frozen=True)
class StoppingResult:
    """Result of the stopping benchmark."""

    drafts: DraftsFound
    checkpoints: CheckpointsFound
    stops: StopsFound
    options: StoppingOptions = field(default_factory=StoppingOptions)


def run(options: StoppingOptions, report: Report) -> StoppingResult:
    """Serve the repository and measure all parts, one after the other.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.

    Raises:
        SlipwayError: The server does not become ready, or refuses the video.
    """
    with TemporaryFolder("slipway-measurement-") as folder:
        repository = options.repository
        if repository is None:
            repository = folder / "models"
            report(f"exporting {PRESET}")
            run_export(family_named(FAMILY), ExportOptions(PRESET, repository))
        report("starting Triton")
        with _asking(repository, folder / "serve.log") as (ask, tree):
            report("warming up")
            _warm_up(ask, options)
            drafts = compare_drafts(ask, options, report)
            checkpoints = compare_checkpoints(ask, options, report)
            stops = measure_stops(ask, options, report, lambda: (tree.own_bytes(FAMILY), tree.own_bytes()))
    return StoppingResult(drafts, checkpoints, stops, options)


@contextmanager
def _asking(repository: Path, log: Path) -> Iterator[tuple[Ask, Tree]]:
    """Serve a repository; give a function that makes a video, and the server's processes."""
    with serving(repository, _READY_TIMEOUT_S, log) as server, Client(server.url) as client:

        def ask(request: TextToVideoRequest) -> WatchedVideo:
            before_s = server.tree.cpu_s()
            video = watch_video(client.stream(request))
            return replace(video, cpu_s=server.tree.cpu_s() - before_s)

        yield ask, server.tree


def _warm_up(ask: Ask, options: StoppingOptions) -> None:
    """Make short videos at the same time, so that each instance of the pipeline has made one."""
    short = replace(options.request, steps=_STEPS_APART)
    with ThreadPoolExecutor(_WARM_UP_CALLERS) as executor:
        for _ in executor.map(ask, [short] * (2 * _WARM_UP_CALLERS)):
            pass
    draft = ask(replace(options.request, stop_after_step=options.stop_after, draft="sheet"))
    ask(replace(options.request, continue_from=_state(draft)))


def compare_drafts(ask: Ask, options: StoppingOptions, report: Report) -> DraftsFound:
    """Make drafts, continue some of them, and make as many whole videos, in turn.

    Args:
        ask: Function that makes a video.
        options: Options of the benchmark.
        report: Callback that receives a line before each video.
    """
    drafts: list[WatchedVideo] = []
    wholes: list[WatchedVideo] = []
    continued: dict[int, WatchedVideo] = {}
    for number in range(options.videos):
        report(f"drafts and whole videos: {number + 1} of {options.videos}")
        request = replace(options.request, seed=options.request.seed + number)
        # The order alternates, so that neither side always comes second.
        if number % 2:
            wholes.append(ask(request))
        drafts.append(ask(replace(request, stop_after_step=options.stop_after, draft="sheet")))
        if number in options.continued_numbers:
            continued[number] = ask(replace(request, continue_from=_state(drafts[-1])))
        if not number % 2:
            wholes.append(ask(request))
    return drafts_found(drafts, continued, wholes)


def compare_checkpoints(ask: Ask, options: StoppingOptions, report: Report) -> CheckpointsFound:
    """Make videos with checkpoints and without, in turn.

    Args:
        ask: Function that makes a video.
        options: Options of the benchmark.
        report: Callback that receives a line before each pair.
    """
    plain: list[WatchedVideo] = []
    checked: list[WatchedVideo] = []
    with_checkpoints = replace(options.request, checkpoint_every_steps=options.checkpoint_every)
    for number in range(options.runs):
        report(f"with checkpoints and without: {number + 1} of {options.runs}")
        sides = [(plain, options.request), (checked, with_checkpoints)]
        for videos, request in sides if number % 2 else reversed(sides):
            videos.append(ask(request))
    return checkpoints_found(plain, checked, options.checkpoint_every, len(_state(checked[-1])))


def measure_stops(
    ask: Ask, options: StoppingOptions, report: Report, memory: Callable[[], tuple[int, int]]
) -> StopsFound:
    """Stop a video every few steps and continue it each time, and read the memory after each stop.

    Then the memory is read after each of as many short videos without a stop, for comparison.

    Args:
        ask: Function that makes a video.
        options: Options of the benchmark.
        report: Callback that receives a line from time to time.
        memory: Function that returns the memory of the pipeline's instances and of the server, in bytes.
    """
    chain = _continuations(ask, options.request)
    for _ in range(_WARM_UP_STOPS):
        next(chain)
    stopped, videos = [memory()], []
    for number in range(options.stops):
        if number % 10 == 0:
            report(f"stops: {number} of {options.stops}")
        videos.append(next(chain))
        stopped.append(memory())
    short = replace(options.request, steps=_STEPS_APART)
    plain = [memory()]
    for number in range(options.stops):
        if number % 10 == 0:
            report(f"videos without a stop: {number} of {options.stops}")
        ask(short)
        plain.append(memory())
    return stops_found(videos, stopped, plain)


def _continuations(ask: Ask, request: TextToVideoRequest) -> Iterator[WatchedVideo]:
    """Yield continuations that are stopped again, without end; a video that is nearly over is left."""
    while True:
        stops = range(_STEPS_APART, request.steps, _STEPS_APART)
        video = ask(replace(request, stop_after_step=stops[0]))
        for stop in stops[1:]:
            video = ask(replace(request, stop_after_step=stop, continue_from=_state(video)))
            yield video


def _state(video: WatchedVideo) -> bytes:
    if video.state is None:
        raise Unrecoverable("bench: a stopped video must come with its state, got none")
    return video.state
