"""The command `slipway bench video`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, LeastPsnr, Output, Quiet, Rounds, parse_size
from slipway_benchmarks.command_run import measure
from slipway_serving.protocol.errors import raise_all


def video(
    rounds: Rounds = 7,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint to export, serve and measure; by default the preset small.",
            metavar="DIR|PRESET|HUB_ID",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Running server to measure; with --checkpoint, diffusers is measured too.",
            metavar="HOST:PORT",
        ),
    ] = None,
    case: Annotated[
        str | None,
        typer.Option(
            help="Named case that sets size, frames, steps, guidance and seed: mlperf-wan2.2.", metavar="NAME"
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="Width and height of the video, pixels, multiples of 16; by default the case's, or 128x128.",
            metavar="WIDTHxHEIGHT",
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(min=1, help="Frames of the video, 4k+1; by default the case's, or 17."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=2, max=100, help="Denoising steps; by default the case's, or 12."),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine of the exported components; NAME=ENGINE sets that of one; may be repeated.",
            metavar="[NAME=]ENGINE",
        ),
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="Precision of the exported components; NAME=PRECISION sets that of one; may be repeated.",
            metavar="[NAME=]PRECISION",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure the memory of decoding too.")
    ] = True,
    least_psnr_db: LeastPsnr = None,
    least_ssim: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Least SSIM against the first subject; below it, the exit code is 1."
        ),
    ] = None,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure whole videos: diffusers, our loop, the same through Triton, and its shortcuts."""
    from slipway_benchmarks.chart import draw_video
    from slipway_benchmarks.pipelines.video import REQUEST, VideoOptions, run
    from slipway_benchmarks.pipelines.video_cases import case_named
    from slipway_benchmarks.pipelines.video_report import check_video_gates, print_video, video_json
    from slipway_export.engines.requested import parse_engines, parse_precisions

    if url is not None:
        raise_all(
            "bench",
            [
                f"{flag} must be left out with --url, where the server's own is measured, got"
                f" {', '.join(values)}"
                for flag, values in {"engine": engine, "precision": precision}.items()
                if values
            ],
        )
    width, height = (REQUEST.width, REQUEST.height) if size is None else parse_size(size)
    chosen = None if case is None else case_named(case)
    if chosen is None:
        request = replace(
            REQUEST, frames=frames or REQUEST.frames, height=height, width=width, steps=steps or REQUEST.steps
        )
    else:
        written = None if size is None else f"{width}x{height}"
        request = chosen.request(REQUEST, {"size": written, "frames": frames, "steps": steps})
    options = VideoOptions(
        rounds,
        request,
        checkpoint,
        url,
        *parse_engines(engine or ()),
        *parse_precisions(precision or ()),
        chosen,
        memory,
        least_psnr_db,
        least_ssim,
    )
    measured, check = partial(run, options), check_video_gates
    measure("video", measured, video_json, draw_video, print_video, output, quiet, check)
