"""Under which name this product is published: what an error tells people to install."""

from __future__ import annotations

NAME = "slipway-triton"


def install_hint(*extras: str) -> str:
    """Return the command that installs extras, for an error's "try"."""
    return f'pip install "{NAME}[{",".join(extras)}]"'
