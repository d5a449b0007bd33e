"""The command `slipway bench engines`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, LeastPsnr, Output, Quiet, Rounds, parse_sizes
from slipway_benchmarks.command_run import measure


def engines(
    family: Annotated[
        str,
        typer.Option(help="Family of the measured component; `slipway families` lists them.", metavar="NAME"),
    ] = "wan_t2v",
    component: Annotated[
        str,
        typer.Option(help="Component that each engine serves; it must have a single graph.", metavar="NAME"),
    ] = "denoiser_high",
    checkpoint: Annotated[
        str,
        typer.Option(
            help="Checkpoint whose component is exported and measured.", metavar="DIR|PRESET|HUB_ID"
        ),
    ] = "small",
    axis: Annotated[
        list[str] | None,
        typer.Option(
            help="Size of a call along an axis, e.g. batch=2; may be repeated; by default the axis's opt.",
            metavar="NAME=SIZE",
        ),
    ] = None,
    rounds: Rounds = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each engine.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine that is measured beside PyTorch eager; may be repeated: torch:inductor,"
            " torch:int8-weights, or ENGINE:PRECISION such as onnxruntime:int8 and tensorrt-rtx:fp16; by"
            " default, those of PyTorch and ONNX Runtime.",
            metavar="NAME",
        ),
    ] = None,
    place: Annotated[
        str, typer.Option(help="Device of PyTorch and of ONNX Runtime.", metavar="cpu|gpu")
    ] = "cpu",
    least_psnr_db: LeastPsnr = None,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure a component as each engine serves it: PyTorch eager, compiled, int8, and our graphs."""
    from slipway_benchmarks.chart import draw_engines
    from slipway_benchmarks.engines.benchmark import (
        DEFAULT_ENGINES,
        EnginesOptions,
        check_engines_gate,
        engines_json,
        print_engines,
        run,
    )

    options = EnginesOptions(
        family,
        component,
        checkpoint,
        parse_sizes(axis or ()),
        rounds,
        threads,
        seed,
        tuple(engine or DEFAULT_ENGINES),
        place,
        least_psnr_db,
    )
    measured, check = partial(run, options), check_engines_gate
    measure("engines", measured, engines_json, draw_engines, print_engines, output, quiet, check)
