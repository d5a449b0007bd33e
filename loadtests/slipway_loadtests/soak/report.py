"""Report of a soak test: lines for the terminal and data as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from slipway_loadtests.soak.kills import unexplained
from slipway_loadtests.soak.running import Result
from slipway_loadtests.soak.traffic import FAILED, RIGHT
from slipway_loadtests.soak.verdict import counts, memory_ratio, shared_per_kill


def lines(result: Result) -> Iterator[str]:
    """Yield the report for a terminal, without the list of problems."""
    run = result.run
    minutes = (run.ended_s - run.begun_s) / 60
    yield f"{len(run.sent)} requests in {minutes:.1f} min to {', '.join(result.models)}"
    for what, count in counts(run).items():
        yield f"  {count} {what}"
    if result.options.requests is None:
        for name, line in result.lines.items():
            if line.trend is None:
                yield f"  {name}: too few windows to say"
            else:
                trend, says = line.trend, "flat" if line.trend.flat else "not flat"
                yield (
                    f"  {name}: {line.values[0]:.4g} to {line.values[-1]:.4g},"
                    f" {trend.percent_per_hour:+.1f} % per hour, {trend.deviations:+.1f} deviations: {says}"
                )
    if run.interruptions:
        failed = [each for each in run.sent if each.ended == FAILED]
        left = len(unexplained(failed, run.interruptions))
        happened = f"{len(run.kills)} kills, {len(run.deaths)} deaths of tritonserver"
        yield f"  {happened}, {len(failed) - left} failures explained by them, {left} not"
        zombies = run.samples[-1].zombies if run.samples else 0
        per_kill = shared_per_kill(run)
        grown = "not known" if per_kill is None else f"{per_kill / (1 << 20):+.2f} MiB"
        yield f"  shared memory for each kill {grown}; {zombies} ended processes not waited for"
    if (ratio := memory_ratio(run)) is not None:
        yield f"  memory at the end {ratio:.3f} of that after the first tenth"
    if run.stop_s is not None:
        yield f"  stopped in {run.stop_s:.1f} s"


def soak_json(result: Result, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report as data: options, machine, counts, lines, samples, kills, every irregular request."""
    run = result.run
    return {
        "kept": not result.broken,
        "broken": list(result.broken),
        "options": dataclasses.asdict(result.options),
        "machine": dict(machine),
        "models": list(result.models),
        "begun_s": run.begun_s,
        "seconds": run.ended_s - run.begun_s,
        "requests": len(run.sent),
        "counts": counts(run),
        "memory_end_to_first_tenth": memory_ratio(run),
        "shared_bytes_per_kill": shared_per_kill(run),
        "stop_s": run.stop_s,
        "unended_callers": run.unended,
        "lines": {
            name: dataclasses.asdict(line) | {"flat": None if line.trend is None else line.trend.flat}
            for name, line in result.lines.items()
        },
        "samples": [dataclasses.asdict(each) for each in run.samples],
        "kills": [dataclasses.asdict(each) for each in run.kills],
        "deaths_of_tritonserver": [dataclasses.asdict(each) for each in run.deaths],
        "said_of_deaths": list(run.words),
        "not_right": [dataclasses.asdict(each) for each in run.sent if each.ended != RIGHT],
        "unexplained": [dataclasses.asdict(each) for each in unexplained(run.sent, run.interruptions)],
        "final": [dataclasses.asdict(each) for each in run.final],
    }
