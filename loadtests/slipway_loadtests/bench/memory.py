"""The peak memory of one denoiser call, each measured in a process of its own.

The parent starts ``python -m slipway_loadtests.bench.memory '<job as JSON>'`` for every subject and size; the
child loads the denoiser, calls it once and prints its peak (VmHWM) and what it held before the call. The peak
of `getrusage` would go on from the process that started the child, and psutil 7 has none.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from slipway_loadtests.bench.stats import Line, fit_line
from slipway_serving.errors import InvalidRequest, Unrecoverable

if TYPE_CHECKING:
    from slipway_serving.program import Models

# Tokens of a call: 4 latent frames, 8 rows, the rest columns.
_FRAMES, _ROWS = 4, 8
_LATENT_PER_TOKEN = 2
# A child may add this share of what is free now: attention that holds its score matrix asks for more than
# the machine has, and must fail here rather than take other processes with it.
_SHARE_OF_FREE = 0.8


@dataclass(frozen=True)
class MemoryJob:
    """One call to measure.

    Attributes:
        folder: the checkpoint for PyTorch, the model repository for a graph.
        model: name of the served graph; None for PyTorch eager.
        tokens: of the call, which has one row.
        channels: of the latents.
        text: rows and width of the text embeddings.
        threads: of the engine.
    """

    folder: str
    model: str | None
    tokens: int
    channels: int
    text: tuple[int, int]
    threads: int


@dataclass(frozen=True)
class MemoryPoint:
    """What one call of so many tokens took, MiB of resident memory."""

    tokens: int
    before_mib: float
    peak_mib: float


@dataclass(frozen=True)
class MemoryCurve:
    """Peaks of one subject over tokens.

    Attributes:
        points: those that could be measured.
        fit: peak MiB over thousands of tokens; None with fewer than two points.
        failed: why the others could not be measured, by tokens.
    """

    points: tuple[MemoryPoint, ...]
    fit: Line | None
    failed: Mapping[int, str]


def check_tokens(tokens: Sequence[int]) -> None:
    """Refuse sizes that cannot be laid out as a video.

    Raises:
        InvalidRequest: a size is none.
    """
    columns = _FRAMES * _ROWS
    if wrong := [size for size in tokens if size < 2 * columns or size % columns or size > 1024 * columns]:
        raise InvalidRequest(
            f"bench: memory-tokens must be multiples of {columns}, {2 * columns} to {1024 * columns},"
            f" got {', '.join(map(str, wrong))}; try 2048"
        )


def latents_of(tokens: int, channels: int) -> tuple[int, int, int, int, int]:
    """Return the shape of latents with so many tokens."""
    columns = tokens // (_FRAMES * _ROWS)
    return (1, channels, _FRAMES, _ROWS * _LATENT_PER_TOKEN, columns * _LATENT_PER_TOKEN)


def measure(job: MemoryJob) -> MemoryPoint:
    """Measure one call in a fresh process.

    Raises:
        Unrecoverable: the process failed, for want of memory or otherwise.
    """
    return MemoryPoint(**told("slipway_loadtests.bench.memory", asdict(job), job.threads))


def told(module: str, job: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Run a module of ours in a process of its own.

    Args:
        module: its name; called with the job as JSON.
        job: what to do.
        threads: of whatever reads `OMP_NUM_THREADS`.

    Returns:
        The JSON of the last line that it printed.

    Raises:
        Unrecoverable: the process failed, for want of memory or otherwise.
    """
    command = [sys.executable, "-m", module, json.dumps(job)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else "no word"
        raise Unrecoverable(f"the process ended with {done.returncode}: {reason[:200]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def curve(points: Sequence[MemoryPoint], failed: Mapping[int, str]) -> MemoryCurve:
    """Fit a line through the peaks, in MiB per thousand tokens."""
    enough = len({point.tokens for point in points}) > 1
    sizes = [point.tokens / 1000 for point in points]
    fit = fit_line(sizes, [point.peak_mib for point in points]) if enough else None
    return MemoryCurve(tuple(points), fit, dict(failed))


def peak_mib() -> float:
    """Return the most that this process has held at a time, MiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def _call_once(job: MemoryJob) -> MemoryPoint:
    """Load, call and measure, in this process."""
    models = _load(job)
    before = psutil.Process().memory_info()
    limit = int(before.vms + _SHARE_OF_FREE * psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    tensors = _tensors(job)
    models.call(job.model or "", tensors, ["sample"])
    return MemoryPoint(job.tokens, before.rss / 2**20, peak_mib())


def _tensors(job: MemoryJob) -> dict[str, Any]:
    from slipway_loadtests.bench.inputs import call_tensors

    return call_tensors(latents_of(job.tokens, job.channels), job.text, seed=0)


def _load(job: MemoryJob) -> Models:
    folder = Path(job.folder)
    if job.model is None:
        import torch

        from slipway_loadtests.bench.subjects import eager

        torch.set_num_threads(job.threads)
        return eager(folder)
    # No torch here: a served graph does not have it either.
    from slipway_serving.models import InProcessModels

    models = InProcessModels(folder, threads=job.threads, limited=False)
    models.load(job.model)
    return models


def _job(text: str) -> MemoryJob:
    raw = json.loads(text)
    return MemoryJob(**raw | {"text": tuple(raw["text"])})


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_call_once(_job(sys.argv[1])))) + "\n")
