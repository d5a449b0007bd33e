"""The command `slipway bench gateway`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet, parse_size
from slipway_benchmarks.command_run import measure


def gateway(
    repository: Annotated[
        Path | None,
        typer.Option(
            help="Exported repository with wan_t2v and wakeword, served for the measurement; by default the"
            " presets small and tiny are exported.",
            metavar="DIR",
        ),
    ] = None,
    size: Annotated[
        str,
        typer.Option(help="Width and height of the video, pixels, multiples of 16.", metavar="WIDTHxHEIGHT"),
    ] = "128x128",
    frames: Annotated[int, typer.Option(min=1, help="Frames of the video, 4k+1.")] = 17,
    steps: Annotated[int, typer.Option(min=2, max=100, help="Denoising steps of a video.")] = 20,
    pairs: Annotated[
        int, typer.Option(min=1, help="Number of videos through the gateway, and of direct ones.")
    ] = 20,
    jobs: Annotated[int, typer.Option(min=2, help="Number of waiting jobs.")] = 1000,
    watchers: Annotated[
        int, typer.Option(min=0, help="Streams of events, each of another waiting job.")
    ] = 200,
    sockets: Annotated[
        int, typer.Option(min=0, help="Sockets that send sound in real time to the wake words.")
    ] = 50,
    gets_per_s: Annotated[
        float, typer.Option(min=0.1, help="Requests per second for a waiting job, whose time is measured.")
    ] = 50.0,
    changes_per_s: Annotated[
        float, typer.Option(min=0.01, help="Waiting jobs per second that are deleted and replaced.")
    ] = 1.0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Time with the queue alone, and time with the crowd, seconds.")
    ] = 60.0,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure the gateway: videos through it beside direct ones, and its answers with a queue and a crowd."""
    from slipway_benchmarks.chart import draw_gateway
    from slipway_benchmarks.gateway.benchmark import REQUEST, GatewayOptions, run
    from slipway_benchmarks.gateway.report import gateway_json, print_gateway
    from slipway_benchmarks.gateway.waiting_jobs import QueueOptions

    width, height = parse_size(size)
    request = replace(REQUEST, width=width, height=height, frames=frames, steps=steps)
    queue = QueueOptions(jobs, watchers, sockets, gets_per_s, changes_per_s, seconds)
    options = GatewayOptions(repository, request, pairs, queue)
    measure("gateway", partial(run, options), gateway_json, draw_gateway, print_gateway, output, quiet)
