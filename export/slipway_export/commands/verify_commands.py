"""The `verify` command: verify placed models at more points or on another device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from slipway_export.commands.sources import parse_parts
from slipway_export.commands.terminal import Quiet, quiet_libraries, reporting
from slipway_export.engines.device import Device
from slipway_serving.protocol.command_output import Json, print_json


def verify(
    repository: Annotated[Path, typer.Argument(help="Model repository with exported models.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint of the models, if it is no longer where their manifests say.",
            metavar="PRESET|DIR|HUB_ID",
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Checkpoint part that is stored elsewhere, e.g. vae=DIR; may be repeated.",
            metavar="NAME=DIR|HUB_ID",
        ),
    ] = None,
    points: Annotated[
        str,
        typer.Option(
            help="Points to verify: min, opt, max, unseen, steps; default: those that the exports left out.",
            metavar="NAME[,NAME…]",
        ),
    ] = "",
    component: Annotated[
        list[str] | None,
        typer.Option(help="Verify only this component; may be repeated.", metavar="NAME"),
    ] = None,
    device: Annotated[Device, typer.Option(help="Device for PyTorch and ONNX Runtime.")] = Device.CPU,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify placed models against PyTorch and add the results to their manifests."""
    from rich.console import Console

    from slipway_export.commands.report import parity_document
    from slipway_export.commands.terminal import print_parity
    from slipway_export.verification.placed import verify_placed

    progress = Console(file=sys.stderr, quiet=quiet)
    with quiet_libraries(), reporting(progress) as report:
        rows = verify_placed(
            repository,
            source=checkpoint,
            parts=parse_parts(part) if part else None,
            components=tuple(component or ()),
            points=tuple(name.strip() for name in points.split(",") if name.strip()),
            device=device,
            report=report,
        )
    if json:
        print_json({"repository": str(repository), "parity": parity_document(rows)})
        return
    if quiet:
        return
    if rows:
        print_parity(rows)
    typer.echo(f"{len(rows)} rows added to the manifests in {repository}")
