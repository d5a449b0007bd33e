"""`slipway train weights`: the demo checkpoints made anew."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from slipway_export.commands.terminal import Quiet, quiet_libraries, reporting
from slipway_serving.protocol.errors import Cancelled


def weights(
    family: Annotated[str, typer.Argument(help="Family whose demo checkpoint to train.", metavar="FAMILY")],
    output: Annotated[Path, typer.Option(help="Folder for the checkpoint.", metavar="DIR")],
    seed: Annotated[int, typer.Option(help="Seed of data and weights, 0 or more.")] = 0,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the state, saved each minute, to resume from; by default OUTPUT.state.",
            metavar="DIR",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(help="Number of PyTorch's threads on the CPU, 1 or more.")] = 2,
    scale: Annotated[float, typer.Option(help="Share of the training steps to make, above 0 to 1.")] = 1.0,
    quiet: Quiet = False,
) -> None:
    """Make a demo checkpoint anew, from a seed, and print what it reaches as JSON."""
    from rich.console import Console

    from slipway_recipes.recipe import Making
    from slipway_recipes.registry import recipe_named

    recipe = recipe_named(family)
    kept = output.with_name(f"{output.name}.state") if state is None else state
    try:
        with quiet_libraries(), reporting(Console(file=sys.stderr, quiet=quiet)) as report:
            figures = recipe.run(Making(output, kept, seed, threads, scale, report))
    except KeyboardInterrupt:
        raise Cancelled(
            f"train: interrupted; the same command continues from the state that was saved last in {kept}"
        ) from None
    typer.echo(json.dumps(figures, indent=2))
