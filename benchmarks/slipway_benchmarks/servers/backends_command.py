"""The command `slipway bench backends`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipway_benchmarks.command_run import measure
from slipway_serving.protocol.durations import checked_option


def backends(
    clients: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Number of simultaneous clients; may be repeated; by default 1, 8 and 16."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Timed rounds, each of which loads both servers once.")
    ] = 4,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Duration of each load, seconds.", callback=checked_option),
    ] = 4.0,
    triton_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an installed Triton with a C++ backend for ONNX graphs; by default as for"
            " `slipway serve`.",
            metavar="DIR",
            envvar="SLIPWAY_TRITON_DIR",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the JSON file and the PNG chart.")
    ] = Path("out/bench"),
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no tables, only the files.")
    ] = False,
) -> None:
    """Measure the backends of ONNX graphs: Triton's own in C++ beside Slipway's in Python."""
    from slipway_benchmarks.chart import draw_backends
    from slipway_benchmarks.servers.backends import BackendsOptions, backends_json, print_backends, run

    options = BackendsOptions(tuple(dict.fromkeys(clients or (1, 8, 16))), rounds, seconds, triton_dir)
    measure("backends", partial(run, options), backends_json, draw_backends, print_backends, output, quiet)
