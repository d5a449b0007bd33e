"""The video benchmark: what Triton costs, and what decoding holds.

The same loop runs through the server and in this process, in turn, on the `small` preset; the report is
the ratio of their times per denoising step. Then videos of several lengths are decoded, each in a process
of its own, and their peak memory is compared. Times of one machine mean little; ratios are what to read.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from clients import Client, Progress, TextToVideoRequest
from export.families import family_named
from export.run import ExportOptions, run_export
from export.spec import Axis
from loadtests.bench.memory import resident_mib
from loadtests.bench.stats import Summary, ratios, summarize
from serving.models import InProcessModels
from serving.server import Server, ServerConfig
from serving.wan_t2v import events as events_in_process
from serving.wan_t2v.facts import PipelineFacts
from serving.wan_t2v.pipeline import generate
from serving.watch import Watch

REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=8, output="frames", seed=1
)
# 320 tokens and no more: export verifies at the largest size, and this is not what is measured.
AXES = (Axis("latent_frames", 1, 5, 5), Axis("token_height", 2, 8, 8), Axis("token_width", 2, 8, 8))
LATENTS = (5, 21, 41)


@dataclass(frozen=True)
class VideoResult:
    """What a run found.

    Attributes:
        triton_ms: median time per step of a round through Triton, milliseconds.
        in_process_ms: the same in process.
        ratio: through Triton ÷ in process, by round.
        peak_memory_mib: of a process that decodes so many latent frames.
    """

    triton_ms: Summary
    in_process_ms: Summary
    ratio: Summary
    peak_memory_mib: Mapping[int, float]


def run(rounds: int, report: Callable[[str], None]) -> VideoResult:
    """Run both parts.

    Args:
        rounds: videos through Triton and in process, each.
        report: called with a line before each long piece of work.
    """
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        repository = Path(folder) / "repository"
        report("exporting the small preset")
        run_export(
            family_named("wan_t2v"),
            ExportOptions(checkpoint="small", repository=repository, axes=AXES),
        )
        through, within = compare_loops(repository, rounds, report)
        memory = {}
        for count in LATENTS:
            report(f"decoding {count} latent frames")
            memory[count] = decode_memory(repository, count)
    return VideoResult(summarize(through), summarize(within), summarize(ratios(through, within)), memory)


def compare_loops(
    repository: Path, rounds: int, report: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    """Time the loop through Triton and in process, in turn.

    Returns:
        Through Triton and in process: the median time per step of each round, milliseconds.
    """
    facts = PipelineFacts.read(repository / "wan_t2v" / "1" / "pipeline.json")
    models = InProcessModels(repository)
    through: list[float] = []
    within: list[float] = []
    config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)
    with Server(config) as server, Client(server.grpc_url) as client:
        for number in range(rounds + 1):
            report(f"round {number} of {rounds}" if number else "warming up")
            served = step_ms(client.generate(REQUEST))
            here = step_ms(generate(REQUEST, facts, models, Watch("wan_t2v", lambda: False, None)))
            if number:  # The first round warms up.
                through.append(served)
                within.append(here)
    models.close()
    return through, within


def step_ms(events: Iterable[object]) -> float:
    """Return the median time between the progress events of a run, milliseconds."""
    at = [event.elapsed_s for event in events if isinstance(event, Progress | events_in_process.Progress)]
    return 1000 * statistics.median([later - earlier for earlier, later in pairwise(at)])


def decode_memory(repository: Path, count: int) -> float:
    """Return the peak memory of a process that decodes so many latent frames, MiB."""
    command = [sys.executable, "-m", "loadtests.bench.video", str(repository), str(count)]
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
    return resident_mib("VmHWM")


def video_json(result: VideoResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    return {
        "benchmark": "video",
        "machine": dict(machine),
        "loop": {name: asdict(getattr(result, name)) for name in ("triton_ms", "in_process_ms", "ratio")},
        "peak_memory_mib": dict(result.peak_memory_mib),
    }


def print_video(console: Console, result: VideoResult) -> None:
    """Print both parts as tables."""
    rounds = len(result.ratio.values)
    table = Table(f"per denoising step, {rounds} rounds", "min", "median", "max", box=box.SIMPLE)
    rows = (
        ("through Triton, ms", result.triton_ms, 1),
        ("in process, ms", result.in_process_ms, 1),
        ("ratio", result.ratio, 3),
    )
    for name, summary, digits in rows:
        figures = (summary.min, summary.median, summary.max)
        table.add_row(name, *(f"{figure:.{digits}f}" for figure in figures))
    console.print(table)
    peaks = result.peak_memory_mib
    table = Table("latent frames decoded", "peak memory, MiB", "over the shortest", box=box.SIMPLE)
    for count, peak in peaks.items():
        table.add_row(str(count), f"{peak:.0f}", f"{peak / peaks[LATENTS[0]]:.3f}")
    console.print(table)


if __name__ == "__main__":
    sys.stdout.write(str(decode_and_measure(Path(sys.argv[1]), int(sys.argv[2]))))
