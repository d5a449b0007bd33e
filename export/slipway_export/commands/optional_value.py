"""Command line options whose value may be omitted, e.g. ``--compile`` for ``--compile default``.

In Typer an option either always takes a value or never does. A command class from :func:`with_optional`
inserts the default value if the argument after the option is not one of the option's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand


def with_optional(options: Mapping[str, Sequence[str]]) -> type[TyperCommand]:
    """Return a command class with options whose value may be omitted.

    Args:
        options: Allowed values by flag; the first is the value of the option alone.
    """

    class Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, insert_defaults(args, options))

    return Command


def insert_defaults(arguments: Sequence[str], options: Mapping[str, Sequence[str]]) -> list[str]:
    """Return arguments with the default value inserted after each option without a value.

    Args:
        arguments: Arguments as typed.
        options: Allowed values by flag, as in :func:`with_optional`; ``NAME=VALUE`` is a value too.
    """
    completed: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=True):
        completed.append(argument)
        values = options.get(argument)
        if values is not None and (following.startswith("-") or _last(following) not in values):
            completed.append(values[0])
    return completed


def _last(text: str) -> str:
    return text.rpartition("=")[2]
