"""Options whose value may be left out: ``--compile`` for ``--compile default``.

Typer's options take a value or none. A command of :func:`with_optional` puts the value in where what follows
the option is none of its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand


def with_optional(options: Mapping[str, Sequence[str]]) -> type[TyperCommand]:
    """Return a class of commands with such options.

    Args:
        options: their values by flag; the first is that of the option alone.
    """

    class Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, filled(args, options))

    return Command


def filled(arguments: Sequence[str], options: Mapping[str, Sequence[str]]) -> list[str]:
    """Return arguments with the first value after each option that stands alone.

    Args:
        arguments: as typed.
        options: as for :func:`with_optional`. ``NAME=VALUE`` is a value too.
    """
    found: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=True):
        found.append(argument)
        values = options.get(argument)
        if values is not None and (following.startswith("-") or _last(following) not in values):
            found.append(values[0])
    return found


def _last(text: str) -> str:
    return text.rpartition("=")[2]
