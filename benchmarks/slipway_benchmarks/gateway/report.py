"""Result of the gateway benchmark as JSON, and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.gateway.benchmark import GatewayResult
from slipway_benchmarks.gateway.waiting_jobs import Look
from slipway_benchmarks.report import spread
from slipway_benchmarks.stats import Summary, quartiles, summarize

MOST_FINISHED_RATIO, MOST_PROGRESS_RATIO, MOST_GET_P99_MS = 1.02, 1.2, 50.0
"""Targets: largest ratios of the times through the gateway and direct, and p99 of `GET /v1/videos/{id}`."""


def gateway_json(result: GatewayResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    found = asdict(result)
    settings = found.pop("options")
    settings["repository"] = None if settings["repository"] is None else str(settings["repository"])
    return {"benchmark": "gateway", "machine": dict(machine), "settings": settings, **found}


def print_gateway(console: Console, result: GatewayResult) -> None:
    """Print both parts as tables."""
    options = result.options
    request, source = options.request, options.repository or "preset small"
    title = f"{source}: {request.width}x{request.height}, {request.frames} frames, {request.steps} steps"
    videos = Table(f"{title}, {options.pairs} pairs", "median (min to max)", "quartiles", box=box.SIMPLE)
    for row in _pair_rows(result):
        videos.add_row(*row)
    console.print(videos)
    queue = Table(
        f"{options.queue.jobs} waiting jobs",
        "alone",
        f"with {options.queue.watchers} watchers, {options.queue.sockets} sockets",
        box=box.SIMPLE,
    )
    for name, *cells in _queue_rows(result):
        queue.add_row(name, *cells)
    console.print(queue)
    found = result.queue
    for line in (
        f"the queue was filled with {found.created_per_s:.1f} jobs a second, p99 {found.create.p99_ms:.0f}"
        f" ms; without a job, the gateway took {_mib(found.empty_bytes)} MiB",
        f"to the crowd came {found.crowd.events} events and {found.crowd.messages} messages;"
        f" {found.crowd.watchers} watchers and {found.crowd.sockets} sockets were open at the end;"
        f" the busy server refused {found.crowd.refusals} sockets, which were opened again",
        f"load average after the videos {result.pairs_load_average:.1f}",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _pair_rows(result: GatewayResult) -> Iterator[tuple[str, str, str]]:
    pairs = result.pairs
    yield f"finished video, gateway ÷ direct (target {MOST_FINISHED_RATIO})", *_ratio(pairs.finished_ratio)
    yield f"first progress, gateway ÷ direct (target {MOST_PROGRESS_RATIO})", *_ratio(pairs.progress_ratio)
    yield "finished video, gateway less direct, ms", *_ms(pairs.finished_added_s)
    yield "first progress, gateway less direct, ms", *_ms(pairs.progress_added_s)
    yield "from the last step to the finished video, gateway less direct, ms", *_ms(pairs.after_steps_added_s)
    yield "finished video, direct, ms", *_ms(pairs.direct_s)
    yield "first progress, direct, ms", *_ms(pairs.direct_progress_s)
    yield "CPU time of the gateway's process for a video, ms", *_ms(pairs.gateway_cpu_s)


def _queue_rows(result: GatewayResult) -> Iterator[tuple[str, str, str]]:
    looks = (result.queue.quiet, result.queue.crowded)

    def row(name: str, cell: Any) -> tuple[str, str, str]:
        quiet, crowded = map(cell, looks)
        return name, quiet, crowded

    per_s = result.options.queue.gets_per_s
    yield row(
        f"GET of a job, {per_s:g} a second: p50, p95, p99 (target {MOST_GET_P99_MS:g}), max, ms", _get_cell
    )
    yield row("creation of a job: p50, max, ms", lambda look: _two(look.create))
    yield row("deletion of a job: p50, max, ms", lambda look: _two(look.delete))
    yield row("anonymous and shared memory, MiB", lambda look: _mib(look.memory_bytes))
    yield row("peak resident memory, MiB", lambda look: _mib(look.peak_bytes))
    yield row("busy cores of the gateway", lambda look: f"{look.cores:.2f}")
    yield row("load average", lambda look: f"{look.load_average:.1f}")


def _get_cell(look: Look) -> str:
    get = look.get
    return f"{get.p50_ms:.1f}, {get.p95_ms:.1f}, {get.p99_ms:.1f}, {get.max_ms:.0f}"


def _two(times: Any) -> str:
    return f"{times.p50_ms:.0f}, {times.max_ms:.0f}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f}"


def _ratio(summary: Summary) -> tuple[str, str]:
    return spread(summary, 3), "{:.3f} to {:.3f}".format(*quartiles(summary.values))


def _ms(summary_s: Summary) -> tuple[str, str]:
    summary = summarize([1000 * value for value in summary_s.values])
    return spread(summary, 0), "{:.0f} to {:.0f}".format(*quartiles(summary.values))
