"""Commands of the developers' tools, which a checkout has and the wheel does not.

The benchmarks and the recipes of the demo checkpoints are packages that only an editable install of a
checkout finds. Where they are missing, the help does not list their commands, and a call of one ends with the
way to get it.
"""

from __future__ import annotations

from importlib.util import find_spec

import typer

from slipway_serving.protocol.errors import InvalidRequest


def benchmarks() -> typer.Typer | None:
    """Return the group of the benchmarks' commands; None from an installed wheel."""
    if find_spec("slipway_benchmarks") is None:
        return None
    from slipway_benchmarks.commands import bench

    return bench


def add_weights(train: typer.Typer) -> None:
    """Add `weights`, which trains a demo checkpoint, to the group `train`."""
    if find_spec("slipway_recipes") is None:
        add_refusal(train, "weights", "train weights: the recipes of the demo checkpoints", "training")
        return
    from slipway_recipes.commands import weights

    train.command("weights")(weights)


def add_refusal(group: typer.Typer, name: str, what: str, extra: str) -> None:
    """Add a hidden command that refuses every call, its help included.

    Args:
        group: Group of the command.
        name: Name of the command.
        what: Beginning of the error: the command, and what is missing, in the plural.
        extra: Extra that the command needs in a checkout.
    """
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}

    @group.command(name, hidden=True, add_help_option=False, context_settings=anything)
    def refuse(context: typer.Context) -> None:
        raise InvalidRequest(
            f"{what} are installed from a checkout only; clone the repository and run:"
            f" pip install -e '.[{extra}]'"
        )
