"""What Triton costs, and what decoding holds: the benchmark behind `make bench`.

The same loop runs through the server and in this process, in turn, on the `small` preset; the report is
the ratio of their times per denoising step. Then videos of several lengths are decoded, each in a process
of its own, and their peak memory is compared. Times of one machine mean little; ratios are what to read.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from clients import Client, Progress, TextToVideoRequest
from export.commands import quiet_libraries
from export.families import family_named
from export.run import ExportOptions, run_export
from export.spec import Axis
from serving.models import InProcessModels
from serving.server import Server, ServerConfig
from serving.wan_t2v import events as events_in_process
from serving.wan_t2v.facts import PipelineFacts
from serving.wan_t2v.pipeline import generate
from serving.watch import Watch

ROUNDS = 7
REQUEST = TextToVideoRequest(
    prompt="A serene lake at sunset", frames=17, height=128, width=128, steps=8, output="frames", seed=1
)
# 320 tokens and no more: export verifies at the largest size, and this is not what is measured.
AXES = (Axis("latent_frames", 1, 5, 5), Axis("token_height", 2, 8, 8), Axis("token_width", 2, 8, 8))
LATENTS = (5, 21, 41)
OUT = Path("out")


def main() -> None:
    """Run both benchmarks; print them and write out/bench.json."""
    console = Console()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        repository = Path(folder) / "repository"
        console.print("exporting the small preset")
        with quiet_libraries():
            run_export(
                family_named("wan_t2v"),
                ExportOptions(checkpoint="small", repository=repository, axes=AXES),
            )
        loops = compare_loops(repository)
        memory = {count: decode_memory(repository, count) for count in LATENTS}
    report = {
        "loop": {name: summary(values) for name, values in loops.items()},
        "peak_memory_mib": memory,
    }
    (OUT / "bench.json").write_text(json.dumps(report, indent=2) + "\n")
    show(console, loops, memory)


def compare_loops(repository: Path) -> dict[str, list[float]]:
    """Time the loop through Triton and in process, in turn.

    Returns:
        For each of `triton_ms`, `in_process_ms` (median time per step of a round, milliseconds) and
        `ratio`, one value per round.
    """
    facts = PipelineFacts.read(repository / "wan_t2v" / "1" / "pipeline.json")
    models = InProcessModels(repository)
    values: dict[str, list[float]] = {"triton_ms": [], "in_process_ms": [], "ratio": []}
    config = ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0)
    with Server(config) as server, Client(server.grpc_url) as client:
        for number in range(ROUNDS + 1):
            through = step_ms(client.generate(REQUEST))
            watch = Watch("wan_t2v", lambda: False, None)
            within = step_ms(generate(REQUEST, facts, models, watch))
            if number:  # The first round warms up.
                values["triton_ms"].append(through)
                values["in_process_ms"].append(within)
                values["ratio"].append(through / within)
    models.close()
    return values


def step_ms(events: Iterable[object]) -> float:
    """Return the median time between the progress events of a run, milliseconds."""
    at = [event.elapsed_s for event in events if isinstance(event, Progress | events_in_process.Progress)]
    return 1000 * statistics.median([later - earlier for earlier, later in pairwise(at)])


def decode_memory(repository: Path, count: int) -> float:
    """Return the peak memory of a process that decodes so many latent frames, MiB."""
    command = [sys.executable, "-m", "loadtests.wan_t2v", str(repository), str(count)]
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
    # Not getrusage: its maximum goes on from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def summary(values: list[float]) -> dict[str, float]:
    """Return min, median and max."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def show(console: Console, loops: dict[str, list[float]], memory: dict[int, float]) -> None:
    """Print both results as tables."""
    table = Table(f"per denoising step, {ROUNDS} rounds", "min", "median", "max", box=box.SIMPLE)
    names = {"triton_ms": "through Triton, ms", "in_process_ms": "in process, ms", "ratio": "ratio"}
    for key, name in names.items():
        numbers = summary(loops[key]).values()
        table.add_row(name, *(f"{number:.3f}" if key == "ratio" else f"{number:.1f}" for number in numbers))
    console.print(table)
    table = Table("latent frames decoded", "peak memory, MiB", "over the shortest", box=box.SIMPLE)
    for count, peak in memory.items():
        table.add_row(str(count), f"{peak:.0f}", f"{peak / memory[LATENTS[0]]:.3f}")
    console.print(table)
    console.print(f"written to {OUT / 'bench.json'}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.stdout.write(str(decode_and_measure(Path(sys.argv[1]), int(sys.argv[2]))))
    else:
        started = time.monotonic()
        main()
        Console().print(f"took {time.monotonic() - started:.0f} s")
