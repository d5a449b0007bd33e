"""The two TensorRT libraries: whether one is installed, which GPUs it builds for, and its import.

TensorRT serves data-centre GPUs and is part of NVIDIA's containers. TensorRT-RTX serves workstation GPUs.
Both have the same Python API. The wheel `onnxruntime-ep-nv-tensorrt-rtx-cu12` contains the shared libraries
of TensorRT-RTX and its ONNX parser, and `tensorrt-rtx-cu12-bindings` the Python API.
"""

from __future__ import annotations

import ctypes
from enum import StrEnum
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from slipway_serving.protocol.errors import InvalidRequest

_RTX_LIBRARIES = "onnxruntime_ep_nv_tensorrt_rtx"
# In the order of their dependency.
_RTX_FILES = ("libtensorrt_rtx.so.*.*.*", "libtensorrt_onnxparser_rtx.so.*.*.*")


class Library(StrEnum):
    """Library that builds and runs an engine."""

    TENSORRT = "tensorrt"
    RTX = "tensorrt-rtx"

    @property
    def full_name(self) -> str:
        """Name of the library in messages."""
        return "TensorRT" if self is Library.TENSORRT else "TensorRT-RTX"

    @property
    def suffix(self) -> str:
        """Suffix of the files of its engines."""
        return ".plan" if self is Library.TENSORRT else ".engine"

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets that it builds for without such a GPU; none if it builds only for the GPU at hand."""
        return _RTX_TARGETS if self is Library.RTX else ()

    @property
    def extra(self) -> str:
        """Extra of Slipway's distribution that installs it."""
        return self.value

    @property
    def installed_version(self) -> str | None:
        """Version of the installed library; None if it is not installed."""
        if not any(find_spec(name) for name in _MODULES[self]):
            return None
        if self is Library.RTX and find_spec("tensorrt_rtx") is None and find_spec(_RTX_LIBRARIES) is None:
            return None
        for name in _DISTRIBUTIONS[self]:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return None


_RTX_TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")
# The first module that is installed counts.
_MODULES = {Library.TENSORRT: ("tensorrt",), Library.RTX: ("tensorrt_rtx", "tensorrt_rtx_bindings")}
_DISTRIBUTIONS = {
    Library.TENSORRT: ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"),
    Library.RTX: ("tensorrt-rtx-cu12-bindings", "tensorrt-rtx-cu13-bindings", "tensorrt-rtx"),
}


def load(library: Library) -> ModuleType:
    """Import the Python API of a library.

    Raises:
        InvalidRequest: The library is not installed, or one of its shared libraries is missing.
    """
    try:
        if library is Library.RTX:
            _load_rtx_libraries()
        return import_module(next(name for name in _MODULES[library] if find_spec(name)))
    except (StopIteration, ImportError, OSError) as error:
        reason = str(error).strip() or f"no module {' or '.join(_MODULES[library])}"
        raise InvalidRequest(f"{library.full_name} must be installed, got {reason}") from error


def _load_rtx_libraries() -> None:
    """Load the shared libraries of TensorRT-RTX, so that its bindings find them by their names.

    The package that contains them would write links into its own folder, which may be read-only.
    """
    found = find_spec(_RTX_LIBRARIES)
    if found is None or not found.submodule_search_locations:
        return
    folder = Path(found.submodule_search_locations[0])
    for pattern in _RTX_FILES:
        for path in sorted(folder.glob(pattern)):
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
