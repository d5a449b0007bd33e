"""The command `slipway bench world`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from slipway_benchmarks.command_options import OUTPUT, Output, Quiet
from slipway_benchmarks.command_run import measure


def world(
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint whose worlds are played.", metavar="PRESET|DIR|HUB_ID")
    ] = "tiny",
    mode: Annotated[
        str, typer.Option(help="Mode of the worlds: universal, gta_drive or templerun.")
    ] = "universal",
    worlds: Annotated[int, typer.Option(min=1, help="Number of worlds, played one after the other.")] = 3,
    blocks: Annotated[int, typer.Option(min=22, max=341, help="Number of blocks of each world.")] = 60,
    at_block: Annotated[
        int,
        typer.Option(
            min=1, max=341, help="Block that is also computed from all frames without caches, to compare."
        ),
    ] = 20,
    threads: Annotated[
        int, typer.Option(min=1, help="ONNX Runtime's threads where graphs are compared.")
    ] = 2,
    output: Output = OUTPUT,
    quiet: Quiet = False,
) -> None:
    """Measure worlds: time and memory from block to block, the first action, what caches save."""
    from slipway_benchmarks.chart import draw_world
    from slipway_benchmarks.pipelines.world import WorldOptions, print_world, run, world_json
    from slipway_serving.families.matrix_game.keys import vocabulary

    vocabulary(mode)
    options = WorldOptions(checkpoint, mode, worlds, blocks, at_block, threads)
    measure("world", partial(run, options), world_json, draw_world, print_world, output, quiet)
