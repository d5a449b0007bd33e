"""Output of the denoiser benchmark: tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.denoiser.benchmark import DenoiserResult, Measured
from slipway_benchmarks.denoiser.ceiling import product_gflop
from slipway_benchmarks.report import quality_cells, spread


def denoiser_json(result: DenoiserResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the denoiser benchmark as JSON: case, settings, machine, figures by subject."""
    options = result.options
    case = options.case
    return {
        "benchmark": "denoiser",
        "case": asdict(case) | {"tokens": case.tokens, "latents": list(case.latents)},
        "settings": {"rounds": options.rounds, "steps": options.steps, "decoded": options.decode},
        "machine": dict(machine),
        "ceiling": asdict(result.ceiling),
        "subjects": {name: asdict(measured) for name, measured in result.measured.items()},
        "not_run": dict(result.not_run),
        "notes": list(result.notes),
    }


def print_denoiser(console: Console, result: DenoiserResult) -> None:
    """Print the denoiser benchmark: speed and quality, then memory, then what was not measured."""
    options, case = result.options, result.options.case
    console.print(
        f"{case.name}: latents {list(case.latents)}, {case.tokens} tokens a row,"
        f" {case.text_tokens} text tokens, {case.threads} threads; {options.rounds} rounds in turn,"
        f" {options.steps} steps",
        highlight=False,
        soft_wrap=True,
    )
    console.print(_speed_table(result))
    console.print(
        f"no float32 subject can be above {spread(result.ceiling)}: so long take the"
        f" {product_gflop(case):.0f} GFLOP of a call's products alone, at the best rate of the same rounds",
        highlight=False,
        soft_wrap=True,
    )
    if any(measured.memory for measured in result.measured.values()):
        console.print(_memory_table(result))
    for name, measured in result.measured.items():
        for tokens, reason in (measured.memory.failed if measured.memory else {}).items():
            console.print(
                f"{name}: memory at {tokens} tokens not measured: {reason}", highlight=False, soft_wrap=True
            )
    for name, reason in result.not_run.items():
        console.print(f"{name}: not run: {reason}", highlight=False, soft_wrap=True)
    for note in result.notes:
        console.print(note, highlight=False, soft_wrap=True)


def _speed_table(result: DenoiserResult) -> Table:
    compared = next((found.quality.compared for found in result.measured.values() if found.quality), "")
    table = Table(
        "", "call, ms", "eager ÷ it", f"{result.options.steps} steps, s", "eager ÷ it, per step",
        "rel. L2, one call", f"PSNR, {compared}", "SSIM", "LPIPS", "nodes", "per block", box=box.SIMPLE,
    )  # fmt: skip
    for name, measured in result.measured.items():
        table.add_row(name, *_speed_cells(measured), *quality_cells(measured.quality), *_node_cells(measured))
    return table


def _speed_cells(measured: Measured) -> Sequence[str]:
    return (
        f"{measured.call_ms.median:.1f}",
        spread(measured.call_ratio),
        f"{measured.trajectory_s:.2f}",
        spread(measured.step_ratio),
    )


def _node_cells(measured: Measured) -> Sequence[str]:
    if measured.nodes is None:
        return ("", "")
    per_block = measured.nodes.per_block
    return (str(measured.nodes.total), "unknown" if per_block is None else str(per_block))


def _memory_table(result: DenoiserResult) -> Table:
    sizes = result.options.memory_tokens
    heads = [f"{tokens:,} tokens" for tokens in sizes]
    table = Table(
        "peak RSS of one call, MiB", *heads, "MiB per 1,000 tokens", "R²", "before it", box=box.SIMPLE
    )
    for name, measured in result.measured.items():
        if (found := measured.memory) is None:
            continue
        peaks = {point.tokens: f"{point.peak_mib:.0f}" for point in found.points}
        before = f"{found.points[0].before_mib:.0f}" if found.points else ""
        line = (f"{found.fit.slope:.1f}", f"{found.fit.r2:.4f}") if found.fit else ("", "")
        table.add_row(name, *(peaks.get(tokens, "not measured") for tokens in sizes), *line, before)
    return table
