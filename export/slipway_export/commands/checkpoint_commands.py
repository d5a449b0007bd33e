"""The commands `families` and `checkpoint`: list the model families, write the checkpoint of a preset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_export.commands.terminal import Quiet, quiet_libraries
from slipway_serving.protocol.command_output import Json, print_json
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from slipway_export.families import Registered

FamilyName = Annotated[
    str, typer.Argument(help="Name of the family; `slipway families` lists all.", metavar="FAMILY")
]


def families(json: Json = False) -> None:
    """List the model families with their origin, presets, variants and the models that clients call."""
    from slipway_export.families import registered

    if json:
        print_json({"families": [_family_document(known) for known in registered()]})
        return
    for known in registered():
        family = known.family
        if family is None:
            typer.echo(f"{known.name}: not available: {known.problem}")
            typer.echo(f"  from        {known.origin}")
            continue
        typer.echo(f"{family.name}: {family.summary}")
        typer.echo(f"  from        {known.origin}")
        typer.echo(f"  checkpoint  {family.upstream}")
        typer.echo(f"  serves      {', '.join(family.served)}")
        for name, preset in family.presets.items():
            typer.echo(f"  preset      {name}: {preset.summary}")
        for name, variant in family.variants.items():
            typer.echo(f"  variant     {name}: {variant.summary}")


def _family_document(known: Registered) -> dict[str, object]:
    """Return the JSON entry of a family."""
    family = known.family
    if family is None:
        return {"name": known.name, "origin": known.origin, "problem": known.problem}
    return {
        "name": family.name,
        "origin": known.origin,
        "problem": None,
        "summary": family.summary,
        "checkpoint": family.upstream,
        "served": list(family.served),
        "presets": {name: preset.summary for name, preset in family.presets.items()},
        "variants": {name: variant.summary for name, variant in family.variants.items()},
    }


def checkpoint(
    family: FamilyName,
    preset: Annotated[str, typer.Option(help="Preset whose checkpoint to write.")] = "tiny",
    output: Annotated[Path, typer.Option(help="Folder to write to; it must be new or empty.")] = Path(
        "checkpoint"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of random weights, 0 or more.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Write the checkpoint of a preset, random or trained, in the layout of the public checkpoint."""
    from slipway_export.families import family_named

    chosen = family_named(family)
    if preset not in chosen.presets:
        raise InvalidRequest(f"preset must be one of {', '.join(chosen.presets)}, got {preset!r}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InvalidRequest(f"output must be an empty or new folder, got {output}")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"output must be a writable folder, got {output} ({error})") from None
    with quiet_libraries():
        chosen.presets[preset].write(output, seed)
    if not quiet:
        typer.echo(str(output))
