"""The name of this product's distribution, and what an error tells people to install.

No package index has the distribution, so the commands install from a checkout.
"""

from __future__ import annotations

NAME = "slipway-triton"
_WHERE = "in a checkout of Slipway"
DEMO_HINT = f"pip install ./training/slipway_demo {_WHERE}"
"""The command that installs the trained checkpoints, which are a distribution of their own."""


def install_hint(*extras: str) -> str:
    """Return the command that installs extras, or without any the bare product, for an error's "try"."""
    what = f'".[{",".join(extras)}]"' if extras else "."
    return f"pip install {what} {_WHERE}"


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
