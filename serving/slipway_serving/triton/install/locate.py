"""Location of a Triton: the nvidia-pytriton wheel, or an installed one as in NGC's images.

An installed Triton has `bin/tritonserver`, `lib`, `backends` and `caches` in one folder, `/opt/tritonserver`
in NGC's images. The wheel contains one `tritonserver` binary, the Python backend's library and one stub per
Python version. :func:`find_triton` locates either.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from slipway_serving.protocol.distribution import install_hint
from slipway_serving.protocol.errors import NotReady
from slipway_serving.triton.install.versions import WHEEL_VERSION, parse_version

TRITON_DIR_VARIABLE = "SLIPWAY_TRITON_DIR"
"""Environment variable with the folder of an installed Triton, if no option names one."""
NGC_FOLDER = Path("/opt/tritonserver")
"""Folder of Triton in NGC's images."""
STUB = "triton_python_backend_stub"
PYTHON_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
_INSTALL_HINT = f"try {install_hint('server')}, or --triton-dir with the folder of an installed Triton"
# The version file may be missing where only the environment of NGC's images is there.
_VERSION_VARIABLE = "TRITON_SERVER_VERSION"
_PYTHON_LIBRARY = re.compile(rb"libpython(3\.\d+)\.so")


@dataclass(frozen=True)
class TritonInstall:
    """Paths of the parts of an installed Triton.

    Attributes:
        folder: Folder of the installation, for messages.
        binary: Executable `tritonserver`.
        libraries: Folder of the shared libraries that it links to.
        backends: Folder of the backends; each has a folder of its name.
        caches: Folder of the response cache libraries.
        stub: Stub executable of the Python backend for the running Python version.
        version: Version of Triton, e.g. ``2.51.0``.
    """

    folder: Path
    binary: Path
    libraries: Path
    backends: Path
    caches: Path
    stub: Path
    version: str

    @property
    def release(self) -> tuple[int, int]:
        """Release of Triton as (major, minor)."""
        return parse_version(self.version, str(self.folder))

    def has_library(self, backend: str) -> bool:
        """Return True if this Triton has a C++ backend of a name, which runs models inside the server."""
        return (self.backends / backend / f"libtriton_{backend}.so").is_file()


def find_triton(folder: Path | None = None) -> TritonInstall:
    """Locate Triton: in a folder, else in NGC's folder, else in the nvidia-pytriton wheel.

    Args:
        folder: Folder of an installed Triton; None takes that of :data:`TRITON_DIR_VARIABLE`, if it is set.

    Raises:
        NotReady: There is no Triton, or it lacks what Slipway needs: the binary, the Python backend, or the
            stub for this Python version. The message names what is missing.
    """
    if folder is None and (given := os.environ.get(TRITON_DIR_VARIABLE)):
        folder = Path(given)
    if folder is not None:
        return _installed(folder.resolve())
    if (NGC_FOLDER / "bin" / "tritonserver").is_file():
        return _installed(NGC_FOLDER)
    return _in_wheel()


def _installed(folder: Path) -> TritonInstall:
    """Return the Triton of a folder in the layout of NGC's images."""
    python, binary = folder / "backends" / "python", folder / "bin" / "tritonserver"
    if not binary.is_file():
        raise NotReady(
            f"server: triton-dir must contain bin/tritonserver, got none in {folder}; try {NGC_FOLDER}"
        )
    install = TritonInstall(
        folder=folder,
        binary=binary,
        libraries=folder / "lib",
        backends=folder / "backends",
        caches=folder / "caches",
        stub=python / STUB,
        version=_version(folder),
    )
    missing = [name for name in (*PYTHON_BACKEND_FILES, STUB) if not (python / name).is_file()]
    if missing:
        raise NotReady(
            f"server: the Triton in {folder} must have the Python backend, in which Slipway's models run, got"
            f" none of {', '.join(missing)} in {python}; try a Triton that was built with it"
        )
    version = _running_version()
    found = {match.decode() for match in _PYTHON_LIBRARY.findall(install.stub.read_bytes())}
    if version not in found:
        raise NotReady(
            f"server: the stub of the Triton in {folder} must be for Python {version}, which runs slipway,"
            f" got {', '.join(sorted(found)) or 'none'}; try slipway in that Python"
        )
    install.release  # noqa: B018 - raises if the version is too low
    return install


def _version(folder: Path) -> str:
    """Return the version of the Triton in a folder, from its file or from the environment of NGC's images."""
    file = folder / "TRITON_VERSION"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    if (given := os.environ.get(_VERSION_VARIABLE)) is not None:
        return given
    raise NotReady(
        f"server: triton-dir must have the file TRITON_VERSION, got none in {folder};"
        f" try to set {_VERSION_VARIABLE}, e.g. to 2.73.0"
    )


def _in_wheel() -> TritonInstall:
    """Return the Triton of the installed nvidia-pytriton wheel, without importing the wheel."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise NotReady(f"server: Triton must be installed, got none; {_INSTALL_HINT}")
    package = Path(next(iter(spec.submodule_search_locations)))
    triton, version = package / "tritonserver", _running_version()
    install = TritonInstall(
        folder=triton,
        binary=triton / "bin" / "tritonserver",
        libraries=package.parent / "nvidia_pytriton.libs",
        backends=triton / "backends",
        caches=triton / "caches",
        stub=triton / "python_backend_stubs" / version / STUB,
        version=WHEEL_VERSION,
    )
    if not install.binary.is_file() or not install.libraries.is_dir():
        raise NotReady(
            f"server: nvidia-pytriton must contain the tritonserver binary, got none in {triton}; "
            "try its Linux x86-64 or arm64 wheel"
        )
    if not install.stub.is_file():
        known = ", ".join(sorted(p.name for p in (triton / "python_backend_stubs").glob("3.*")))
        raise NotReady(f"server: Python must be one of {known}, got {version}; try another Python version")
    return install


def _running_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
