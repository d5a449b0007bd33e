"""Video benchmark: whole videos compared, and the memory of decoding.

In turn on one checkpoint, diffusers' own pipeline, our loop in this process, the same loop through Triton,
and through Triton with each shortcut of a request make the same video. The benchmark compares the time of a
video and of a step, and the frames. Then it decodes videos of several lengths, each in a separate process,
and compares their peak memory. For a running server, it measures only that server's videos, beside diffusers'
if the checkpoint is available. Every subject has the time of its denoising alone and of the whole video.
Absolute times depend on the machine; read the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway_benchmarks import similarity
from slipway_benchmarks.pipelines.decode_memory import decode_memory
from slipway_benchmarks.pipelines.video_cases import VideoCase
from slipway_benchmarks.pipelines.video_subjects import (
    DIFFUSERS,
    IN_PROCESS,
    TRITON,
    Make,
    VideoTimes,
    make_in_process,
    make_videos,
    prepare_diffusers,
    prepare_served,
)
from slipway_benchmarks.similarity import Quality
from slipway_benchmarks.stats import Summary, ratios, summarize
from slipway_client import Client, TextToVideoRequest
from slipway_client.address import address_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis, Engine, Precision
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.request import FRAMES_PER_LATENT, PIXELS_PER_TOKEN
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.system.gpu import compute_capabilities
from slipway_serving.system.temporary_folders import TemporaryFolder
from slipway_serving.triton.server import Server, ServerConfig

REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=12, output="frames", seed=1
)
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
            DIFFUSERS: prepare_diffusers(checkpoint, options.request),
            IN_PROCESS: partial(make_in_process, facts, models, options.request),
            **prepare_served(client, options.request),
        }
        return make_videos(subjects, options.rounds, report, not_run)


def _run_served(options: VideoOptions, url: str, report: Callable[[str], None]) -> VideoResult:
    """Measure the videos of a running server, and diffusers' if the checkpoint is available."""
    left_out = (
        "the loop in process and the memory of decoding were left out: they need an export, without --url"
    )
    with ExitStack() as opened:
        subjects = prepare_served(opened.enter_context(Client(*address_of(url))), options.request)
        if options.checkpoint is None:
            left_out = f"diffusers was left out: it needs --checkpoint too; {left_out}"
        else:
            checkpoint = opened.enter_context(open_checkpoint(family_named("wan_t2v"), options.checkpoint))
            if options.case is not None:
                options.case.check(checkpoint)
            subjects = {DIFFUSERS: prepare_diffusers(checkpoint.path, options.request), **subjects}
        not_run: dict[str, str] = {}
        taken = make_videos(subjects, options.rounds, report, not_run)
    notes = [left_out]
    if options.case is not None and options.checkpoint is None:
        notes.append(f"the boundary of {options.case.name} was not checked: it needs --checkpoint too")
    return VideoResult(compare(taken), None, {}, not_run, tuple(notes), options)


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
