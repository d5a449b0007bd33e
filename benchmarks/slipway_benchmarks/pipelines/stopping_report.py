"""Result of the stopping benchmark as JSON, and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from slipway_benchmarks.pipelines.stopping import StoppingOptions, StoppingResult
from slipway_benchmarks.pipelines.stopping_figures import Growth
from slipway_benchmarks.report import spread
from slipway_benchmarks.stats import Summary, quartiles, summarize

LEAST_STEP_S = 0.1
"""Shortest step for which the figures say something about real videos, in seconds."""


def stopping_json(result: StoppingResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the benchmark as JSON."""
    found = asdict(result)
    settings = found.pop("options")
    settings["repository"] = None if settings["repository"] is None else str(settings["repository"])
    return {
        "benchmark": "stopping",
        "machine": dict(machine),
        "settings": settings,
        "expected_ratio": result.options.expected_ratio,
        **found,
    }


def print_stopping(console: Console, result: StoppingResult) -> None:
    """Print the figures as a table, under the size of the videos."""
    table = Table(_size(result.options), "median (min to max)", "quartiles", box=box.SIMPLE)
    for row in _rows(result):
        table.add_row(*row)
    console.print(table)
    if (step_s := result.checkpoints.step_s.median) < LEAST_STEP_S:
        console.print(
            f"a step took {1000 * step_s:.0f} ms; with steps below {1000 * LEAST_STEP_S:.0f} ms, the times"
            " around the steps weigh more than in real videos; try a larger --size",
            highlight=False,
        )


def _size(options: StoppingOptions) -> str:
    request, source = options.request, options.repository or "preset small"
    return f"{source}: {request.width}x{request.height}, {request.frames} frames, {request.steps} steps"


def _rows(result: StoppingResult) -> Iterator[tuple[str, str, str]]:
    options, drafts, checkpoints, stops = result.options, result.drafts, result.checkpoints, result.stops
    some = f"{options.videos} drafts of {options.stop_after} steps, {options.continued} continued"
    yield "a step, ms", *_ms(checkpoints.step_s)
    yield "a whole video, ms", *_ms(drafts.whole_s)
    yield f"{some} ÷ {options.videos} whole videos", f"{drafts.ratio:.3f}", ""
    yield "the same, CPU time of the server", f"{drafts.cpu_ratio:.3f}", ""
    yield "the same, steps alone", f"{drafts.steps_ratio:.3f}", ""
    yield "the same, number of steps", f"{options.expected_ratio:.3f}", ""
    yield "a draft ÷ a whole video", *_ratio(drafts.draft_ratio)
    yield "a continuation ÷ a whole video", *_ratio(drafts.continued_ratio)
    every = options.checkpoint_every
    yield f"steps with a checkpoint every {every} ÷ without, {options.runs} runs", *_ratio(checkpoints.ratio)
    yield "the same, CPU time of the server", *_ratio(checkpoints.cpu_ratio)
    yield "the step after a checkpoint ÷ the steps around it", *_ratio(checkpoints.step_ratio)
    yield "the same steps without checkpoints", *_ratio(checkpoints.plain_ratio)
    yield "size of a state, KiB", f"{checkpoints.state_bytes / 1024:.0f}", ""
    yield f"from a step to the stop, {options.stops} stops, ms", *_ms(stops.stop_s)
    yield "from sending a state to the end of the next step, ms", *_ms(stops.continue_s)
    yield "the step after that, ms", *_ms(stops.step_s)
    yield "what continuing adds to a step, ms", *_ms(stops.added_s)
    yield "memory of the pipeline's instances, MiB", *_memory(stops.pipeline)
    yield "the same over as many short videos without a stop", *_memory(stops.plain_pipeline)
    yield "memory of the server, MiB", *_memory(stops.server)
    yield "the same over as many short videos without a stop", *_memory(stops.plain_server)


def _ratio(summary: Summary) -> tuple[str, str]:
    return spread(summary, 3), "{:.3f} to {:.3f}".format(*quartiles(summary.values))


def _ms(summary_s: Summary) -> tuple[str, str]:
    summary = summarize([1000 * value for value in summary_s.values])
    return spread(summary, 0), "{:.0f} to {:.0f}".format(*quartiles(summary.values))


def _memory(growth: Growth) -> tuple[str, str]:
    before, after = growth.read_bytes[0] / 2**20, growth.read_bytes[-1] / 2**20
    return f"{before:.1f} -> {after:.1f}", f"{growth.line.slope / 1024:+.1f} KiB a request"
