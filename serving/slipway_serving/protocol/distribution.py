"""Name of Slipway's distribution, and installation hints for error messages.

No package index has the distribution, so the commands install from a checkout.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

NAME = "slipway-triton"
_WHERE = "in a checkout of Slipway"
_ONNXRUNTIME_GPU = "onnxruntime-gpu"
DEMO_HINT = f"pip install ./training/slipway_demo {_WHERE}"
"""Command that installs the trained checkpoints, which are a separate distribution."""


def install_hint(*extras: str) -> str:
    """Return the command that installs extras, or the product without extras, for the "try" of an error."""
    what = f'".[{",".join(extras)}]"' if extras else "."
    return f"pip install {what} {_WHERE}"


def onnxruntime_gpu_hint() -> str:
    """Return the commands that replace ONNX Runtime by its build for GPUs."""
    # Both distributions install the folder onnxruntime, so one must leave before the other comes.
    return f"pip uninstall --yes onnxruntime {_ONNXRUNTIME_GPU}, then {install_hint('gpu')}"


def onnxruntime_conflict() -> str | None:
    """Return an error message if both builds of ONNX Runtime are installed; None if at most one is."""
    try:
        both = [f"{name} {version(name)}" for name in ("onnxruntime", _ONNXRUNTIME_GPU)]
    except PackageNotFoundError:
        return None
    return (
        f"only one of onnxruntime and {_ONNXRUNTIME_GPU} may be installed, since each overwrites the other's"
        f" files, got {' and '.join(both)}; try {onnxruntime_gpu_hint()}"
    )


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
