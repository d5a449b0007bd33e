"""Video benchmark: whole videos compared, and the memory of decoding.

In turn on one checkpoint, diffusers' own pipeline, our loop in this process, the same loop through Triton,
and through Triton with each shortcut of a request make the same video. The benchmark compares the time of a
video and of a step, and the frames. Then it decodes videos of several lengths, each in a separate process,
and compares their peak memory. For a running server, it measures only that server's videos, beside diffusers'
if the checkpoint is available. Absolute times depend on the machine; read the ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks import similarity
from slipway_benchmarks.denoiser.cases import LATENT_CHANNELS, PIXELS_PER_LATENT
from slipway_benchmarks.report import quality_cells, spread
from slipway_benchmarks.separate_process import peak_mib
from slipway_benchmarks.similarity import Quality
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_client import Client, Frames, Progress, TextToVideoRequest
from slipway_client.address import address_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import generate
from slipway_serving.families.wan_t2v.request import FRAMES_PER_LATENT, PIXELS_PER_TOKEN
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import FramesPart
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.triton.server import Server, ServerConfig

DIFFUSERS, IN_PROCESS, TRITON = "diffusers", "in process", "through Triton"
REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=12, output="frames", seed=1
)
SHORTCUTS: dict[str, dict[str, Any]] = {
    "cache_threshold 0.1": {"cache_threshold": 0.1},
    "cache_threshold 0.2": {"cache_threshold": 0.2},
    "guidance_stop 0.5": {"guidance_stop": 0.5},
}
LATENTS = (5, 21, 41)


@dataclass(frozen=True)
class VideoOptions:
    """Options of the video benchmark.

    Attributes:
        rounds: Number of videos of each subject.
        request: Request for the video, without shortcuts; its output is frames.
        checkpoint: Preset, folder or hub id; None for the preset `small`, or, with `url`, for no comparison
            with diffusers.
        url: Address of a running server, as :func:`slipway_client.address.address_of` accepts it; None to
            export and serve the checkpoint here.
    """

    rounds: int = 7
    request: TextToVideoRequest = REQUEST
    checkpoint: str | None = None
    url: str | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Ranges that end at the video's size, because export verifies at the largest size."""
        latents = (self.request.frames - 1) // FRAMES_PER_LATENT + 1
        rows, columns = self.request.height // PIXELS_PER_TOKEN, self.request.width // PIXELS_PER_TOKEN
        return (
            Axis("latent_frames", 1, latents, latents),
            Axis("token_height", min(2, rows), rows, rows),
            Axis("token_width", min(2, columns), columns, columns),
        )


@dataclass
class VideoTimes:
    """Measurements of one subject, round by round.

    Attributes:
        video_ms: Time from the request to the last frame, in milliseconds.
        step_ms: Median time between steps, in milliseconds; empty if the subject does not report steps.
        frames: Frames of the last video, [frames, height, width, 3], uint8.
        hit_rate: Hit rate of the first-block cache, 0 to 1; None without a cache.
    """

    video_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    frames: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    hit_rate: float | None = None


Make = Callable[[VideoTimes], None]
"""Function that makes the video once and records the measurements."""


@dataclass(frozen=True)
class Subject:
    """Figures of one subject.

    Attributes:
        video_ms: Time from the request to the last frame, in milliseconds.
        ratio: First subject's time for a video ÷ its own, by round.
        quality: Quality of its frames against the first subject's; None for the first.
        hit_rate: Hit rate of the first-block cache, 0 to 1; None without a cache.
    """

    video_ms: Summary
    ratio: Summary
    quality: Quality | None
    hit_rate: float | None


@dataclass(frozen=True)
class VideoResult:
    """Result of the video benchmark.

    Attributes:
        subjects: Figures by name; all are compared with the first, which is diffusers if the checkpoint is
            available.
        step_ratio: Time per step through Triton ÷ in process, by round; None for a server that ran already.
        peak_memory_mib: Peak memory of a decoding process by number of latent frames, in MiB; empty for a
            server that ran already.
        not_run: Reasons why subjects have no figures, by subject.
        notes: Notes about other figures that were not measured, and why.
        options: Options of the benchmark.
    """

    subjects: Mapping[str, Subject]
    step_ratio: Summary | None
    peak_memory_mib: Mapping[int, float]
    not_run: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    options: VideoOptions = field(default_factory=VideoOptions)


def run(options: VideoOptions, report: Callable[[str], None]) -> VideoResult:
    """Run both parts, or only the first for a server that runs already.

    Args:
        options: Options of the benchmark.
        report: Callback that receives a line before each long step.

    Raises:
        SlipwayError: The checkpoint or the server is invalid, or the server refuses the plain video.
    """
    if options.url is not None:
        return _run_served(options, options.url, report)
    family = family_named("wan_t2v")
    with (
        open_checkpoint(family, options.checkpoint or "small") as checkpoint,
        TemporaryFolder("slipway-measurement-") as folder,
    ):
        repository = folder / "repository"
        report(f"exporting {checkpoint.source}")
        export = ExportOptions(
            checkpoint=str(checkpoint.path),
            repository=repository,
            axes=options.axes,
            variant="first-block-cache",
        )
        run_export(family, export)
        taken = _make_here(options, checkpoint.path, repository, report)
        memory = {}
        for count in LATENTS:
            report(f"decoding {count} latent frames")
            memory[count] = decode_memory(repository, count, options.request)
    step_ratio = summarize(ratios(taken[TRITON].step_ms, taken[IN_PROCESS].step_ms))
    return VideoResult(compare(taken), step_ratio, memory, options=options)


def _make_here(
    options: VideoOptions, checkpoint: Path, repository: Path, report: Callable[[str], None]
) -> dict[str, VideoTimes]:
    facts = PipelineFacts.read(repository / "wan_t2v" / "1" / "pipeline.json")
    config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)
    with (
        closing(InProcessModels(repository)) as models,
        Server(config) as server,
        Client(server.grpc_url) as client,
    ):
        subjects: dict[str, Make] = {
            DIFFUSERS: _diffusers(checkpoint, options.request),
            IN_PROCESS: partial(_within, facts, models, options.request),
            **_served(client, options.request),
        }
        return make_videos(subjects, options.rounds, report, {})


def _run_served(options: VideoOptions, url: str, report: Callable[[str], None]) -> VideoResult:
    """Measure the videos of a running server, and diffusers' if the checkpoint is available."""
    left_out = (
        "the loop in process and the memory of decoding were left out: they need an export, without --url"
    )
    with ExitStack() as opened:
        subjects = _served(opened.enter_context(Client(*address_of(url))), options.request)
        if options.checkpoint is None:
            left_out = f"diffusers was left out: it needs --checkpoint too; {left_out}"
        else:
            checkpoint = opened.enter_context(open_checkpoint(family_named("wan_t2v"), options.checkpoint))
            subjects = {DIFFUSERS: _diffusers(checkpoint.path, options.request), **subjects}
        not_run: dict[str, str] = {}
        taken = make_videos(subjects, options.rounds, report, not_run)
    return VideoResult(compare(taken), None, {}, not_run, (left_out,), options)


def _served(client: Client, request: TextToVideoRequest) -> dict[str, Make]:
    """Return the functions that make the video through a server, plain and with each shortcut."""
    requests = {TRITON: request}
    for name, fields in SHORTCUTS.items():
        requests[f"{TRITON}, {name}"] = replace(request, **fields)
    return {name: partial(_through, client, each) for name, each in requests.items()}


def make_videos(
    subjects: Mapping[str, Make], rounds: int, report: Callable[[str], None], not_run: dict[str, str]
) -> dict[str, VideoTimes]:
    """Make the same video with every subject, in turn, after one more round to warm up.

    Args:
        subjects: Functions that make the video, by name.
        rounds: Number of timed videos of each subject.
        report: Callback that receives a line before each round.
        not_run: Mapping that receives the reasons for shortcuts that a server refuses in the first round.

    Raises:
        InvalidRequest: The server refuses the plain video.
    """
    found = {name: VideoTimes() for name in subjects}
    for number in range(rounds + 1):
        report(f"round {number} of {rounds}" if number else "warming up")
        for name in list(found):
            # The first round only warms up, so its measurements are dropped.
            taken = found[name] if number else VideoTimes()
            started = time.perf_counter()
            try:
                subjects[name](taken)
            except InvalidRequest as error:
                if number or name in (DIFFUSERS, TRITON):
                    raise
                not_run[name] = str(error)
                del found[name]
                continue
            taken.video_ms.append(1000 * (time.perf_counter() - started))
    return found


def _diffusers(checkpoint: Path, request: TextToVideoRequest) -> Make:
    """Return the function that makes the video with diffusers' own pipeline."""
    import torch
    from diffusers import WanPipeline

    pipeline = WanPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)

    def make(taken: VideoTimes) -> None:
        output = pipeline(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            num_frames=request.frames,
            height=request.height,
            width=request.width,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(request.seed),
        )
        taken.frames = (output.frames[0] * 255).round().astype(np.uint8)

    return make


def _within(
    facts: PipelineFacts, models: InProcessModels, request: TextToVideoRequest, taken: VideoTimes
) -> None:
    events = list(generate(request, facts, models, Interruption("wan_t2v", lambda: False, None)))
    taken.step_ms.append(step_ms(events))
    chunks = [event.pixels for event in events if isinstance(event, FramesPart)]
    taken.frames = np.concatenate(chunks)


def _through(client: Client, request: TextToVideoRequest, taken: VideoTimes) -> None:
    events = list(client.generate(request))
    taken.step_ms.append(step_ms(events))
    result = events[-1]
    if not isinstance(result, Frames):
        raise TypeError(f"a request for frames must end with them, got {type(result).__name__}")
    taken.frames, taken.hit_rate = result.array, result.cache_hit_rate


def compare(taken: Mapping[str, VideoTimes]) -> dict[str, Subject]:
    """Return the figures of each subject against the first one."""
    reference = next(iter(taken.values()))
    return {
        name: Subject(
            video_ms=summarize(found.video_ms),
            ratio=summarize(ratios(reference.video_ms, found.video_ms)),
            quality=None if found is reference else _quality(found.frames, reference.frames),
            hit_rate=found.hit_rate,
        )
        for name, found in taken.items()
    }


def _quality(actual: NDArray[np.uint8], expected: NDArray[np.uint8]) -> Quality:
    # SSIM needs planes, but the channels of a picture are its last axis.
    planes = [np.moveaxis(frames, -1, -3) for frames in (actual, expected)]
    return Quality(
        relative_l2=similarity.relative_l2(actual, expected),
        compared="video",
        psnr_db=similarity.psnr_db(actual, expected),
        ssim=similarity.ssim(*planes),
        lpips=None,
    )


def step_ms(events: Iterable[object]) -> float:
    """Return the median time between the progress events of a run, in milliseconds."""
    at = [event.elapsed_s for event in events if isinstance(event, Progress)]
    return 1000 * statistics.median([later - earlier for earlier, later in pairwise(at)])


def decode_memory(repository: Path, count: int, request: TextToVideoRequest) -> float:
    """Return the peak memory of a process that decodes `count` latent frames of a video's size, in MiB."""
    sizes = [str(size) for size in (count, request.height, request.width)]
    command = [sys.executable, "-m", "slipway_benchmarks.pipelines.video", str(repository), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def decode_and_measure(repository: Path, count: int, height: int, width: int) -> float:
    """Decode `count` latent frames, drop the pixels as they arrive, and return the peak memory in MiB."""
    models = InProcessModels(repository)
    shape = (1, LATENT_CHANNELS, count, height // PIXELS_PER_LATENT, width // PIXELS_PER_LATENT)
    latents = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    frames = sum(
        len(answer["frames"])
        for answer in models.stream("wan_t2v_vae_decoder", {"latents": latents}, ["frames"])
    )
    if frames != 4 * (count - 1) + 1:
        raise RuntimeError(f"decoded {frames} frames of {count} latents")
    return peak_mib()


def video_json(result: VideoResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    return {
        "benchmark": "video",
        "machine": dict(machine),
        "settings": asdict(result.options),
        "subjects": {name: asdict(subject) for name, subject in result.subjects.items()},
        "step_ratio": asdict(result.step_ratio) if result.step_ratio else None,
        "peak_memory_mib": dict(result.peak_memory_mib),
        "not_run": dict(result.not_run),
        "notes": list(result.notes),
    }


def print_video(console: Console, result: VideoResult) -> None:
    """Print the measured figures as tables, then what was not measured."""
    first = next(iter(result.subjects))
    rounds = len(result.subjects[first].video_ms.values)
    table = Table(
        f"{rounds} rounds", "video, ms", f"{first} ÷ it", "PSNR", "SSIM", "cache hits", box=box.SIMPLE
    )
    for name, subject in result.subjects.items():
        hits = "" if subject.hit_rate is None else f"{subject.hit_rate:.2f}"
        close = quality_cells(subject.quality)[1:3]
        table.add_row(name, f"{subject.video_ms.median:.0f}", spread(subject.ratio), *close, hits)
    console.print(table)
    if result.step_ratio:
        console.print(
            f"time per step, {TRITON} ÷ {IN_PROCESS}: {spread(result.step_ratio, digits=3)}", highlight=False
        )
    if peaks := result.peak_memory_mib:
        table = Table("latent frames decoded", "peak memory, MiB", "over the shortest", box=box.SIMPLE)
        for count, peak in peaks.items():
            table.add_row(str(count), f"{peak:.0f}", f"{peak / peaks[LATENTS[0]]:.3f}")
        console.print(table)
    for name, reason in result.not_run.items():
        console.print(f"{name}: not run: {reason}", highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(note, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.stdout.write(str(decode_and_measure(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
