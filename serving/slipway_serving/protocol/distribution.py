"""Name of Slipway's distribution, and installation hints for error messages.

No package index has the distribution, so the commands install from a checkout.
"""

from __future__ import annotations

NAME = "slipway-triton"
_WHERE = "in a checkout of Slipway"
DEMO_HINT = f"pip install ./training/slipway_demo {_WHERE}"
"""Command that installs the trained checkpoints, which are a separate distribution."""


def install_hint(*extras: str) -> str:
    """Return the command that installs extras, or the product without extras, for the "try" of an error."""
    what = f'".[{",".join(extras)}]"' if extras else "."
    return f"pip install {what} {_WHERE}"


def missing(what: str, error: ModuleNotFoundError, extra: str | None) -> str | None:
    """Return an error message for a package that is not installed; None if the module is Slipway's own.

    Args:
        what: Command that needs the package.
        error: Exception that the import raised.
        extra: Extra that contains the package; None for an installation without extras.
    """
    package = (error.name or "").partition(".")[0]
    if not package or package.startswith("slipway_"):
        return None
    fix = install_hint(extra) if extra else install_hint()
    return f"{what} needs {package}, which is not installed; try {fix}"
