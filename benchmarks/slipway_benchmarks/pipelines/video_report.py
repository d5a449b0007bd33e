"""Result of the video benchmark as JSON, as tables, and against its gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.gates import check_gates
from slipway_benchmarks.pipelines.video import LATENTS, VideoResult
from slipway_benchmarks.pipelines.video_subjects import IN_PROCESS, TRITON
from slipway_benchmarks.report import quality_cells, spread

LEAST_PSNR_DB, LEAST_SSIM = "least-psnr-db", "least-ssim"


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
