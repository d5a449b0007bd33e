"""The command `slipway bench stopping`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet, parse_size
from slipway_benchmarks.command_run import measure


def stopping(
    repository: Annotated[
        Path | None,
        typer.Option(
            help="Exported repository with wan_t2v, served for the measurement; by default the preset small"
            " is exported.",
            metavar="DIR",
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(help="Width and height of the video, pixels, multiples of 16.", metavar="WIDTHxHEIGHT"),
    ] = "128x128",
    frames: Annotated[int, typer.Option(min=1, help="Frames of the video, 4k+1.")] = 17,
    steps: Annotated[int, typer.Option(min=5, max=100, help="Denoising steps of a whole video.")] = 30,
    videos: Annotated[int, typer.Option(min=1, help="Number of drafts, and of whole videos.")] = 10,
    continued: Annotated[int, typer.Option(min=1, help="Number of drafts that are continued.")] = 3,
    stop_after: Annotated[int, typer.Option(min=2, help="Denoising steps of a draft.")] = 10,
    checkpoint_every: Annotated[int, typer.Option(min=2, help="Steps between two checkpoints.")] = 5,
    runs: Annotated[
        int, typer.Option(min=1, help="Number of videos with checkpoints, and of videos without.")
    ] = 10,
    stops: Annotated[
        int, typer.Option(min=1, help="Number of stops and continuations whose time and memory are measured.")
    ] = 100,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure stopping videos: drafts beside whole videos, checkpoints beside none, one stop, its memory."""
    from slipway_benchmarks.chart import draw_stopping
    from slipway_benchmarks.pipelines.stopping import REQUEST, StoppingOptions, run
    from slipway_benchmarks.pipelines.stopping_report import print_stopping, stopping_json

    width, height = parse_size(size)
    request = replace(REQUEST, width=width, height=height, frames=frames, steps=steps)
    options = StoppingOptions(
        repository, request, videos, continued, stop_after, checkpoint_every, runs, stops
    )
    measure("stopping", partial(run, options), stopping_json, draw_stopping, print_stopping, output, quiet)
