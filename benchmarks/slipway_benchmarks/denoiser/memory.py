"""Peak memory of one denoiser call, each measured in a separate process.

The parent starts ``python -m slipway_benchmarks.denoiser.memory '<job as JSON>'`` for every subject and
size. The child loads the denoiser, calls it once and prints its peak (VmHWM) and its memory before the call.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from slipway_benchmarks.separate_process import peak_mib, run_module
from slipway_benchmarks.stats import Line, fit_line
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_serving.runtime.program import Models

# The tokens of a call form 4 latent frames and 8 rows; the rest are columns.
_FRAMES, _ROWS = 4, 8
_LATENT_PER_TOKEN = 2
# A child process may allocate this share of the free memory. Attention that stores its score matrix needs
# more than the machine has, so its process must fail before the kernel kills others.
_SHARE_OF_FREE = 0.8


@dataclass(frozen=True)
class MemoryJob:
    """One call to measure.

    Attributes:
        folder: Folder of the checkpoint for PyTorch, or of the model repository for a graph.
        model: Name of the served graph; None for PyTorch eager.
        tokens: Number of tokens of the call, which has one row.
        channels: Number of channels of the latents.
        text: Rows and width of the text embeddings.
        threads: Number of threads of the engine.
    """

    folder: str
    model: str | None
    tokens: int
    channels: int
    text: tuple[int, int]
    threads: int


@dataclass(frozen=True)
class MemoryPoint:
    """Resident memory of one call, in MiB, and its number of tokens."""

    tokens: int
    before_mib: float
    peak_mib: float


@dataclass(frozen=True)
class MemoryCurve:
    """Peak memory of one subject over the number of tokens.

    Attributes:
        points: Successful measurements.
        fit: Line of peak MiB over thousands of tokens; None with fewer than two points.
        failed: Reasons why other sizes could not be measured, by number of tokens.
    """

    points: tuple[MemoryPoint, ...]
    fit: Line | None
    failed: Mapping[int, str]


def check_tokens(tokens: Sequence[int]) -> None:
    """Refuse sizes that cannot be laid out as a video.

    Raises:
        InvalidRequest: At least one size has no such layout.
    """
    columns = _FRAMES * _ROWS
    if wrong := [size for size in tokens if size < 2 * columns or size % columns or size > 1024 * columns]:
        raise InvalidRequest(
            f"bench: memory-tokens must be multiples of {columns}, {2 * columns} to {1024 * columns},"
            f" got {', '.join(map(str, wrong))}; try 2048"
        )


def latents_of(tokens: int, channels: int) -> tuple[int, int, int, int, int]:
    """Return the shape of latents with the given number of tokens."""
    columns = tokens // (_FRAMES * _ROWS)
    return (1, channels, _FRAMES, _ROWS * _LATENT_PER_TOKEN, columns * _LATENT_PER_TOKEN)


def measure(job: MemoryJob) -> MemoryPoint:
    """Measure one call in a fresh process.

    Raises:
        Unrecoverable: The process failed, for lack of memory or another reason.
    """
    return MemoryPoint(**run_module("slipway_benchmarks.denoiser.memory", asdict(job), job.threads))


def curve(points: Sequence[MemoryPoint], failed: Mapping[int, str]) -> MemoryCurve:
    """Fit a line through the peaks, in MiB per thousand tokens."""
    enough = len({point.tokens for point in points}) > 1
    sizes = [point.tokens / 1000 for point in points]
    fit = fit_line(sizes, [point.peak_mib for point in points]) if enough else None
    return MemoryCurve(tuple(points), fit, dict(failed))


def _call_once(job: MemoryJob) -> MemoryPoint:
    """Load, call and measure in this process."""
    models = _load(job)
    before = psutil.Process().memory_info()
    limit = int(before.vms + _SHARE_OF_FREE * psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    tensors = _tensors(job)
    models.call(job.model or "", tensors, ["sample"])
    return MemoryPoint(job.tokens, before.rss / 2**20, peak_mib())


def _tensors(job: MemoryJob) -> dict[str, Any]:
    from slipway_benchmarks.denoiser.inputs import call_tensors

    return call_tensors(latents_of(job.tokens, job.channels), job.text, seed=0)


def _load(job: MemoryJob) -> Models:
    folder = Path(job.folder)
    if job.model is None:
        import torch

        from slipway_benchmarks.denoiser.subjects import eager

        torch.set_num_threads(job.threads)
        return eager(folder)
    # Do not import torch here: a process that serves a graph does not load it either.
    from slipway_serving.runtime.in_process import InProcessModels

    models = InProcessModels(folder, threads=job.threads, limited=False)
    models.load(job.model)
    return models


def _job(text: str) -> MemoryJob:
    raw = json.loads(text)
    return MemoryJob(**raw | {"text": tuple(raw["text"])})


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_call_once(_job(sys.argv[1])))) + "\n")
