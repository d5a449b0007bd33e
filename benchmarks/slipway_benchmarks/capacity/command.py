"""The command `slipway bench capacity`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet
from slipway_benchmarks.command_run import measure


def capacity_bench(
    users: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Number of users for which to size a fleet; may be repeated."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="Rounds of load on a real Triton; with 0, only the model is evaluated.")
    ] = 3,
    requests: Annotated[int, typer.Option(min=20, help="Number of requests of each open loop.")] = 400,
    load: Annotated[
        float,
        typer.Option(
            min=0.05, max=0.95, help="Load of each open loop, as a share of the server's highest throughput."
        ),
    ] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the arrival times and of the simulation.")] = 0,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure whether the capacity model finds a real Triton's queueing delays; then ask it about fleets."""
    from slipway_benchmarks.capacity.benchmark import CapacityOptions, capacity_json, print_capacity, run
    from slipway_benchmarks.capacity.chart import draw_capacity

    asked = {"users": tuple(sorted(set(users)))} if users else {}
    options = CapacityOptions(rounds, requests, load, **asked, seed=seed)
    measure("capacity", partial(run, options), capacity_json, draw_capacity, print_capacity, output, quiet)
