"""What the examples share."""

from __future__ import annotations

from slipway_cli import root


def slipway(*arguments: str) -> None:
    """Run a `slipway` command as the shell would, and end with its code where that is not 0."""
    if code := root.run(arguments):
        raise SystemExit(code)
