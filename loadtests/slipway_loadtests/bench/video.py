"""The video benchmark: whole videos side by side, and what decoding holds.

diffusers' own pipeline, our loop in this process, the same loop through Triton, and through Triton with each
shortcut that a request may ask for, in turn on the `small` preset: time of a video and of a step, and how
close the frames are. Then videos of several lengths are decoded, each in a process of its own, and their
peak memory is compared. Times of one machine mean little; ratios are what to read.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
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

from slipway_client import Client, Frames, Progress, TextToVideoRequest
from slipway_export.families import family_named
from slipway_export.run import ExportOptions, run_export
from slipway_export.spec import Axis
from slipway_loadtests.bench import quality
from slipway_loadtests.bench.memory import peak_mib
from slipway_loadtests.bench.quality import Quality
from slipway_loadtests.bench.report import quality_cells, spread
from slipway_loadtests.bench.stats import Summary, ratios, summarize
from slipway_serving.events import FramesPart
from slipway_serving.models import InProcessModels
from slipway_serving.server import Server, ServerConfig
from slipway_serving.wan_t2v.facts import PipelineFacts
from slipway_serving.wan_t2v.pipeline import generate
from slipway_serving.watch import Watch

DIFFUSERS, IN_PROCESS, TRITON = "diffusers", "in process", "through Triton"
REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=12, output="frames", seed=1
)
SHORTCUTS = {
    f"{TRITON}, cache_threshold 0.1": replace(REQUEST, cache_threshold=0.1),
    f"{TRITON}, cache_threshold 0.2": replace(REQUEST, cache_threshold=0.2),
    f"{TRITON}, guidance_stop 0.5": replace(REQUEST, guidance_stop=0.5),
}
# 320 tokens and no more: export verifies at the largest size, and this is not what is measured.
AXES = (Axis("latent_frames", 1, 5, 5), Axis("token_height", 2, 8, 8), Axis("token_width", 2, 8, 8))
LATENTS = (5, 21, 41)


@dataclass
class Taken:
    """What one subject did, round by round.

    Attributes:
        video_ms: from the request to the last frame, milliseconds.
        step_ms: median time between steps, milliseconds; empty where the subject does not tell.
        frames: of the last video, [frames, height, width, 3], uint8.
        hit_rate: of the first-block cache, 0 to 1; None without one.
    """

    video_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    frames: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    hit_rate: float | None = None


@dataclass(frozen=True)
class Subject:
    """What a run found of one subject.

    Attributes:
        video_ms: from the request to the last frame, milliseconds.
        ratio: diffusers' time for a video ÷ its own, by round.
        quality: of its frames against diffusers'; None for diffusers.
        hit_rate: of the first-block cache, 0 to 1; None without one.
    """

    video_ms: Summary
    ratio: Summary
    quality: Quality | None
    hit_rate: float | None


@dataclass(frozen=True)
class VideoResult:
    """What a run found.

    Attributes:
        subjects: by name, diffusers first.
        step_ratio: time per step through Triton ÷ in process, by round.
        peak_memory_mib: of a process that decodes so many latent frames.
    """

    subjects: Mapping[str, Subject]
    step_ratio: Summary
    peak_memory_mib: Mapping[int, float]


def run(rounds: int, report: Callable[[str], None]) -> VideoResult:
    """Run both parts.

    Args:
        rounds: videos of each subject.
        report: called with a line before each long piece of work.
    """
    family = family_named("wan_t2v")
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        checkpoint, repository = Path(folder) / "checkpoint", Path(folder) / "repository"
        checkpoint.mkdir()
        family.presets["small"].write(checkpoint, 0)
        report("exporting the small preset")
        options = ExportOptions(
            checkpoint=str(checkpoint), repository=repository, axes=AXES, variant="first-block-cache"
        )
        run_export(family, options)
        taken = make_videos(checkpoint, repository, rounds, report)
        memory = {}
        for count in LATENTS:
            report(f"decoding {count} latent frames")
            memory[count] = decode_memory(repository, count)
    step_ratio = summarize(ratios(taken[TRITON].step_ms, taken[IN_PROCESS].step_ms))
    return VideoResult(compare(taken), step_ratio, memory)


def make_videos(
    checkpoint: Path, repository: Path, rounds: int, report: Callable[[str], None]
) -> dict[str, Taken]:
    """Make the same video with every subject, in turn, and once more before that to warm up."""
    facts = PipelineFacts.read(repository / "wan_t2v" / "1" / "pipeline.json")
    models = InProcessModels(repository)
    config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)
    with Server(config) as server, Client(server.grpc_url) as client:
        subjects: dict[str, Callable[[Taken], None]] = {
            DIFFUSERS: _diffusers(checkpoint),
            IN_PROCESS: partial(_within, facts, models),
        }
        for name, request in {TRITON: REQUEST, **SHORTCUTS}.items():
            subjects[name] = partial(_through, client, request)
        found = {name: Taken() for name in subjects}
        for number in range(rounds + 1):
            report(f"round {number} of {rounds}" if number else "warming up")
            for name, make in subjects.items():
                # The first round warms up.
                taken = found[name] if number else Taken()
                started = time.perf_counter()
                make(taken)
                taken.video_ms.append(1000 * (time.perf_counter() - started))
    models.close()
    return found


def _diffusers(checkpoint: Path) -> Callable[[Taken], None]:
    """Return what makes the video with diffusers' own pipeline."""
    import torch
    from diffusers import WanPipeline

    pipeline = WanPipeline.from_pretrained(checkpoint, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)

    def make(taken: Taken) -> None:
        output = pipeline(
            prompt=REQUEST.prompt,
            negative_prompt=REQUEST.negative_prompt,
            num_frames=REQUEST.frames,
            height=REQUEST.height,
            width=REQUEST.width,
            num_inference_steps=REQUEST.steps,
            guidance_scale=REQUEST.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(REQUEST.seed),
        )
        taken.frames = (output.frames[0] * 255).round().astype(np.uint8)

    return make


def _within(facts: PipelineFacts, models: InProcessModels, taken: Taken) -> None:
    events = list(generate(REQUEST, facts, models, Watch("wan_t2v", lambda: False, None)))
    taken.step_ms.append(step_ms(events))
    chunks = [event.pixels for event in events if isinstance(event, FramesPart)]
    taken.frames = np.concatenate(chunks)


def _through(client: Client, request: TextToVideoRequest, taken: Taken) -> None:
    events = list(client.generate(request))
    taken.step_ms.append(step_ms(events))
    result = events[-1]
    if not isinstance(result, Frames):
        raise TypeError(f"a request for frames must end with them, got {type(result).__name__}")
    taken.frames, taken.hit_rate = result.array, result.cache_hit_rate


def compare(taken: Mapping[str, Taken]) -> dict[str, Subject]:
    """Return the figures of each subject against diffusers."""
    reference = taken[DIFFUSERS]
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
    # SSIM takes planes: a picture's channels lie behind its pixels.
    planes = [np.moveaxis(frames, -1, -3) for frames in (actual, expected)]
    return Quality(
        relative_l2=quality.relative_l2(actual, expected),
        compared="video",
        psnr_db=quality.psnr_db(actual, expected),
        ssim=quality.ssim(*planes),
        lpips=None,
    )


def step_ms(events: Iterable[object]) -> float:
    """Return the median time between the progress events of a run, milliseconds."""
    at = [event.elapsed_s for event in events if isinstance(event, Progress)]
    return 1000 * statistics.median([later - earlier for earlier, later in pairwise(at)])


def decode_memory(repository: Path, count: int) -> float:
    """Return the peak memory of a process that decodes so many latent frames, MiB."""
    command = [sys.executable, "-m", "slipway_loadtests.bench.video", str(repository), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def decode_and_measure(repository: Path, count: int) -> float:
    """Decode so many latent frames, drop the pixels as they come, and return the peak memory, MiB."""
    models = InProcessModels(repository)
    latents = np.random.default_rng(0).standard_normal((1, 16, count, 16, 16)).astype(np.float32)
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
        "subjects": {name: asdict(subject) for name, subject in result.subjects.items()},
        "step_ratio": asdict(result.step_ratio),
        "peak_memory_mib": dict(result.peak_memory_mib),
    }


def print_video(console: Console, result: VideoResult) -> None:
    """Print both parts as tables."""
    rounds = len(result.step_ratio.values)
    table = Table(
        f"{rounds} rounds", "video, ms", f"{DIFFUSERS} ÷ it", "PSNR", "SSIM", "cache hits", box=box.SIMPLE
    )
    for name, subject in result.subjects.items():
        hits = "" if subject.hit_rate is None else f"{subject.hit_rate:.2f}"
        close = quality_cells(subject.quality)[1:3]
        table.add_row(name, f"{subject.video_ms.median:.0f}", spread(subject.ratio), *close, hits)
    console.print(table)
    console.print(
        f"time per step, {TRITON} ÷ {IN_PROCESS}: {spread(result.step_ratio, digits=3)}", highlight=False
    )
    peaks = result.peak_memory_mib
    table = Table("latent frames decoded", "peak memory, MiB", "over the shortest", box=box.SIMPLE)
    for count, peak in peaks.items():
        table.add_row(str(count), f"{peak:.0f}", f"{peak / peaks[LATENTS[0]]:.3f}")
    console.print(table)


if __name__ == "__main__":
    sys.stdout.write(str(decode_and_measure(Path(sys.argv[1]), int(sys.argv[2]))))
