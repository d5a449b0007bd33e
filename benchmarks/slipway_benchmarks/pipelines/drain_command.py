"""The command `slipway bench drain`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet, parse_size
from slipway_benchmarks.command_run import measuring


def drain(
    repository: Annotated[
        Path | None,
        typer.Option(
            help="Exported repository with wan_t2v; by default the preset small is exported.", metavar="DIR"
        ),
    ] = None,
    videos: Annotated[int, typer.Option(min=1, max=16, help="Videos that the server works on.")] = 4,
    size: Annotated[
        str,
        typer.Option(help="Width and height of the video, pixels, multiples of 16.", metavar="WIDTHxHEIGHT"),
    ] = "128x128",
    frames: Annotated[int, typer.Option(min=1, help="Frames of the video, 4k+1.")] = 17,
    steps: Annotated[int, typer.Option(min=8, max=100, help="Denoising steps of a video.")] = 20,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure how long a server takes to stop its videos after SIGTERM, beside one of their steps."""
    from slipway_benchmarks.pipelines.drain import REQUEST, run
    from slipway_loadtests.json_report import write_json
    from slipway_loadtests.machine import machine_facts, machine_lines

    width, height = parse_size(size)
    request = replace(REQUEST, width=width, height=height, frames=frames, steps=steps)
    with measuring(output, quiet) as (report, console):
        machine = machine_facts()
        found = run(repository, request, videos, report)
        data = output / "drain.json"
        write_json({"benchmark": "drain", "machine": dict(machine), **asdict(found)}, data)
        lines = (
            f"{found.videos} videos of {width}x{height}, {frames} frames, {steps} steps",
            f"a step: {1000 * found.step_s:.0f} ms",
            f"from SIGTERM to the exit: {1000 * found.exit_s:.0f} ms, {found.ratio:.2f} steps;"
            f" {1000 * (found.exit_s - found.step_s):.0f} ms more than a step",
            f"from SIGTERM until the second server works on all: {1000 * found.last_state_s:.0f} ms",
            f"steps done: {found.steps_done} for {found.videos} x {steps}; {found.moves} videos moved",
            *machine_lines(machine),
            f"written to {data}",
        )
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
