"""The command `slipway bench wakeword`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet, Rounds
from slipway_benchmarks.command_run import measure
from slipway_serving.protocol.durations import checked_option


def wakeword(
    clients: Annotated[
        int, typer.Option(min=1, help="Number of simultaneous clients, each with one request in flight.")
    ] = 16,
    rounds: Rounds = 5,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Duration of the load on each server in each round, seconds.",
            callback=checked_option,
        ),
    ] = 4.0,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of each ONNX Runtime session in each server.")
    ] = 1,
    int8: Annotated[bool, typer.Option("--int8/--no-int8", help="Compare int8 graphs too.")] = True,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure wake words: Triton's batching beside none and LitServe's, int8 beside fp32."""
    from slipway_benchmarks.chart import draw_wakeword
    from slipway_benchmarks.servers.wakeword import WakewordOptions, print_wakeword, run, wakeword_json

    options = WakewordOptions(clients, rounds, seconds, threads, **({} if int8 else {"calls": 0}))
    measure("wakeword", partial(run, options), wakeword_json, draw_wakeword, print_wakeword, output, quiet)
