"""Under which name this product is published: what an error tells people to install."""

from __future__ import annotations

NAME = "slipway-triton"


def install_hint(*extras: str) -> str:
    """Return the command that installs extras, or without any the bare product, for an error's "try"."""
    return f'pip install "{NAME}[{",".join(extras)}]"' if extras else f"pip install {NAME}"


def missing(what: str, error: ModuleNotFoundError, extra: str | None) -> str | None:
    """Return the sentence for a package that is not installed; None where a module of ours is missing.

    Args:
        what: the command that needs the package.
        error: what its import raised.
        extra: the extra that brings it; None for the bare install.
    """
    package = (error.name or "").partition(".")[0]
    if not package or package.startswith("slipway_"):
        return None
    fix = install_hint(extra) if extra else install_hint()
    return f"{what} needs {package}, which is not installed; try {fix}"
