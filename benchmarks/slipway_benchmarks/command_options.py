"""Options that several commands of `slipway bench` share, and the parsing of their texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipway_serving.protocol.errors import InvalidRequest

Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the JSON file and the PNG chart.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables, only the files.")]
Rounds = Annotated[int, typer.Option(min=1, help="Timed rounds, each of which measures every subject once.")]
LeastPsnr = Annotated[
    float | None,
    typer.Option(min=0, help="Least PSNR against the first subject, dB; below it, the exit code is 1."),
]
OUTPUT = Path("out/bench")
"""Default of :data:`Output`."""
_SIZE = re.compile(r"(\d+)[x*](\d+)", re.IGNORECASE)


def parse_size(text: str) -> tuple[int, int]:
    """Return the width and the height of a text such as "320x240", in pixels.

    Raises:
        InvalidRequest: The text is not such a size.
    """
    if not (found := _SIZE.fullmatch(text.strip())):
        raise InvalidRequest(f"bench: size must be WIDTHxHEIGHT in pixels, got {text!r}; try 320x240")
    return int(found[1]), int(found[2])


def parse_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Return the sizes of texts such as "batch=2", by name of the axis.

    Raises:
        InvalidRequest: A text has another form, or names an axis again.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not name or not (size.isascii() and size.isdigit()) or name in sizes:
            raise InvalidRequest(f"bench: axis must be NAME=SIZE, each once, got {text!r}; try batch=2")
        sizes[name] = int(size)
    return sizes


def parse_tokens(text: str) -> tuple[int, ...]:
    """Return numbers of tokens of a text such as "2048,4096", each once, in ascending order.

    Raises:
        InvalidRequest: A part is not a whole number.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidRequest(
            f"bench: memory-tokens must be whole numbers with commas between, got {text!r}; try 2048,4096"
        )
    return tuple(sorted({int(part) for part in parts}))
