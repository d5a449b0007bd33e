"""Video benchmark: whole videos compared, and the memory of decoding.

In turn on one checkpoint, diffusers' own pipeline, our loop in this process, the same loop through Triton,
and through Triton with each shortcut of a request make the same video. The benchmark compares the time of a
video and of a step, and the frames. Then it decodes videos of several lengths, each in a separate process,
and compares their peak memory. For a running server, it measures only that server's videos, beside diffusers'
if the checkpoint is available. Every subject has the time of its denoising alone and of the whole video.
Absolute times depend on the machine; read the ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from slipway_benchmarks.gates import check_gates
from slipway_benchmarks.pipelines.video_cases import VideoCase
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
from slipway_export.spec import Axis, Engine, Precision
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import generate
from slipway_serving.families.wan_t2v.request import FRAMES_PER_LATENT, PIXELS_PER_TOKEN
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import FramesPart
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.system.gpu import compute_capabilities
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
LEAST_PSNR_DB, LEAST_SSIM = "least-psnr-db", "least-ssim"


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
        engine: Engine of the exported components.
        engines: Engines of components that differ, by component name.
        precision: Precision of the exported components.
        precisions: Precisions of components that differ, by component name.
        case: Named case that the request is of.
        memory: True to measure the memory of decoding too.
        least_psnr_db: Least PSNR of a subject against the first, in decibels; None for no gate.
        least_ssim: Least SSIM of a subject against the first; None for no gate.
    """

    rounds: int = 7
    request: TextToVideoRequest = REQUEST
    checkpoint: str | None = None
    url: str | None = None
    engine: Engine = Engine.ONNXRUNTIME
    engines: Mapping[str, Engine] = field(default_factory=dict)
    precision: Precision = Precision.FP32
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    case: VideoCase | None = None
    memory: bool = True
    least_psnr_db: float | None = None
    least_ssim: float | None = None

    @property
    def variant(self) -> str | None:
        """Variant of the export: with the caches of the shortcuts, except for TensorRT.

        Triton's TensorRT backend serves an engine by itself, so no program could skip the blocks of it.
        """
        uses = (self.engine, *self.engines.values())
        return None if any(engine.is_tensorrt for engine in uses) else "first-block-cache"

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
        denoise_ms: Time of all steps, see :func:`denoise_ms`, in milliseconds.
    """

    video_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    frames: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    hit_rate: float | None = None
    denoise_ms: list[float] = field(default_factory=list)

    def record_steps(self, ends_s: Sequence[float]) -> None:
        """Record the times at which the steps of a video ended, in seconds."""
        self.step_ms.append(step_ms(ends_s))
        self.denoise_ms.append(denoise_ms(ends_s))


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
        denoise_ms: Time of all steps alone, in milliseconds; None if the subject does not report steps.
        denoise_ratio: First subject's time of all steps ÷ its own, by round; None without these times.
    """

    video_ms: Summary
    ratio: Summary
    quality: Quality | None
    hit_rate: float | None
    denoise_ms: Summary | None = None
    denoise_ratio: Summary | None = None


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
    _check_gpu(options)
    family = family_named("wan_t2v")
    with (
        open_checkpoint(family, options.checkpoint or "small") as checkpoint,
        TemporaryFolder("slipway-measurement-") as folder,
    ):
        if options.case is not None:
            options.case.check(checkpoint)
        repository = folder / "repository"
        report(f"exporting {checkpoint.source}")
        export = ExportOptions(
            checkpoint=str(checkpoint.path),
            repository=repository,
            axes=options.axes,
            variant=options.variant,
            engine=options.engine,
            engines=options.engines,
            precision=options.precision,
            precisions=options.precisions,
        )
        run_export(family, export)
        not_run: dict[str, str] = {}
        taken = _make_here(options, checkpoint.path, repository, report, not_run)
        memory = {}
        for count in LATENTS if options.memory else ():
            report(f"decoding {count} latent frames")
            memory[count] = decode_memory(repository, count, options.request)
    step_ratio = summarize(ratios(taken[TRITON].step_ms, taken[IN_PROCESS].step_ms))
    return VideoResult(compare(taken), step_ratio, memory, not_run, options=options)


def _check_gpu(options: VideoOptions) -> None:
    """Refuse an engine that this machine could build, but not run, before any work."""
    uses = dict.fromkeys((options.engine, *options.engines.values()))
    if (engine := next((each for each in uses if each.is_tensorrt), None)) and not compute_capabilities():
        raise InvalidRequest(
            f"bench: engine {engine.value} must run on an NVIDIA GPU, got a machine without one; try"
            f" `slipway bench quality --graphs tensorrt`, which needs no GPU"
        )


def _make_here(
    options: VideoOptions,
    checkpoint: Path,
    repository: Path,
    report: Callable[[str], None],
    not_run: dict[str, str],
) -> dict[str, VideoTimes]:
    facts = PipelineFacts.read(repository / "wan_t2v" / "1" / "pipeline.json")
    config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)
    with (
        closing(InProcessModels(repository, gpu=True)) as models,
        Server(config) as server,
        Client(server.grpc_url) as client,
    ):
        subjects: dict[str, Make] = {
            DIFFUSERS: _diffusers(checkpoint, options.request),
            IN_PROCESS: partial(_within, facts, models, options.request),
            **_served(client, options.request),
        }
        return make_videos(subjects, options.rounds, report, not_run)


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
            if options.case is not None:
                options.case.check(checkpoint)
            subjects = {DIFFUSERS: _diffusers(checkpoint.path, options.request), **subjects}
        not_run: dict[str, str] = {}
        taken = make_videos(subjects, options.rounds, report, not_run)
    notes = [left_out]
    if options.case is not None and options.checkpoint is None:
        notes.append(f"the boundary of {options.case.name} was not checked: it needs --checkpoint too")
    return VideoResult(compare(taken), None, {}, not_run, tuple(notes), options)


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

    low = {} if request.guidance_scale_2 is None else {"guidance_scale_2": request.guidance_scale_2}

    def make(taken: VideoTimes) -> None:
        ends_s: list[float] = []

        def ended(_: object, step: int, timestep: object, tensors: dict[str, Any]) -> dict[str, Any]:
            ends_s.append(time.perf_counter())
            return tensors

        output = pipeline(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            num_frames=request.frames,
            height=request.height,
            width=request.width,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            callback_on_step_end=ended,
            **low,
        )
        taken.record_steps(ends_s)
        taken.frames = (output.frames[0] * 255).round().astype(np.uint8)

    return make


def _within(
    facts: PipelineFacts, models: InProcessModels, request: TextToVideoRequest, taken: VideoTimes
) -> None:
    events = list(generate(request, facts, models, Interruption("wan_t2v", lambda: False, None)))
    taken.record_steps(step_ends_s(events))
    chunks = [event.pixels for event in events if isinstance(event, FramesPart)]
    taken.frames = np.concatenate(chunks)


def _through(client: Client, request: TextToVideoRequest, taken: VideoTimes) -> None:
    events = list(client.generate(request))
    taken.record_steps(step_ends_s(events))
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
            denoise_ms=summarize(found.denoise_ms) if found.denoise_ms else None,
            denoise_ratio=summarize(ratios(reference.denoise_ms, found.denoise_ms))
            if reference.denoise_ms and found.denoise_ms
            else None,
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


def check_video_gates(result: VideoResult) -> None:
    """Refuse a result with a subject below a gate of its options.

    Raises:
        GateMissed: The PSNR or the SSIM of a subject is too low. The message names each such subject.
    """
    found: dict[str, dict[str, float]] = {}
    for name, subject in result.subjects.items():
        if (quality := subject.quality) is not None:
            psnr = {} if quality.psnr_db is None else {LEAST_PSNR_DB: quality.psnr_db}
            found[name] = {**psnr, LEAST_SSIM: quality.ssim}
    options = result.options
    check_gates(found, {LEAST_PSNR_DB: options.least_psnr_db, LEAST_SSIM: options.least_ssim})


def step_ends_s(events: Iterable[object]) -> list[float]:
    """Return the times of the progress events of a run, each at the end of a step, in seconds."""
    return [event.elapsed_s for event in events if isinstance(event, Progress)]


def step_ms(ends_s: Sequence[float]) -> float:
    """Return the median time between the ends of at least two steps, in milliseconds."""
    return 1000 * statistics.median([later - earlier for earlier, later in pairwise(ends_s)])


def denoise_ms(ends_s: Sequence[float]) -> float:
    """Return the time of all steps, from the start of the first to the end of the last, in milliseconds.

    Nothing reports the start of the first step, which therefore counts as the median of the others.

    Args:
        ends_s: Times at which at least two steps ended, in seconds.
    """
    return 1000 * (ends_s[-1] - ends_s[0]) + step_ms(ends_s)


def decode_memory(repository: Path, count: int, request: TextToVideoRequest) -> float:
    """Return the peak memory of a process that decodes `count` latent frames of a video's size, in MiB."""
    sizes = [str(size) for size in (count, request.height, request.width)]
    command = [sys.executable, "-m", "slipway_benchmarks.pipelines.video", str(repository), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def decode_and_measure(repository: Path, count: int, height: int, width: int) -> float:
    """Decode `count` latent frames, drop the pixels as they arrive, and return the peak memory in MiB."""
    models = InProcessModels(repository, gpu=True)
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
    if (case := result.options.case) is not None:
        console.print(f"case {case.name}: {case.text}", highlight=False, soft_wrap=True)
    table = Table(
        f"{rounds} rounds", "denoising, ms", f"{first} ÷ it", "whole video, ms", f"{first} ÷ it", "PSNR",
        "SSIM", "cache hits", box=box.SIMPLE,
    )  # fmt: skip
    for name, subject in result.subjects.items():
        hits = "" if subject.hit_rate is None else f"{subject.hit_rate:.2f}"
        close = quality_cells(subject.quality)[1:3]
        denoising = (
            "" if subject.denoise_ms is None else f"{subject.denoise_ms.median:.0f}",
            "" if subject.denoise_ratio is None else spread(subject.denoise_ratio),
        )
        whole = (f"{subject.video_ms.median:.0f}", spread(subject.ratio))
        table.add_row(name, *denoising, *whole, *close, hits)
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
