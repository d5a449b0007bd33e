"""JSON output of commands for scripts: `--json` prints one JSON document on stdout.

With `--json`, progress and messages for people go to stderr. A command that fails prints no document: its
exit code and one line on stderr state the error, as without `--json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as one JSON document on stdout, and the rest on stderr."),
]


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document as JSON; numbers that are not finite become null, since JSON cannot hold them."""
    typer.echo(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
