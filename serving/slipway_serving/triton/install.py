"""Triton from the nvidia-pytriton wheel: locate it and prepare backends for this Python version.

The wheel contains one `tritonserver` binary, the Python backend's library and one stub per Python version.
:func:`find_triton` locates them. :func:`lay_out_backends` writes a backend directory with `python` (the
wheel's library and this Python's stub) and `onnxruntime` (ours). :func:`lay_out_interpreter` writes a virtual
environment in which the stubs find the packages of this process. :func:`environment` returns the environment
variables with which the server must be started.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway_serving.protocol.distribution import install_hint
from slipway_serving.protocol.errors import NotReady

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]
_INSTALL_HINT = f"try {install_hint('server')}"


@dataclass(frozen=True)
class TritonInstall:
    """Paths of the parts of an installed Triton.

    Attributes:
        binary: Executable `tritonserver`.
        libraries: Folder of the shared libraries that it links to.
        python_backend: Folder of `libtriton_python.so` and `triton_python_backend_utils.py`.
        caches: Folder of the response cache libraries.
        stub: Stub executable of the Python backend for the running Python version.
    """

    binary: Path
    libraries: Path
    python_backend: Path
    caches: Path
    stub: Path


def find_triton() -> TritonInstall:
    """Locate Triton in the installed nvidia-pytriton wheel, without importing it.

    Raises:
        NotReady: The wheel is not installed, is incomplete, or has no stub for this Python version.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise NotReady(f"server: nvidia-pytriton must be installed, got none; {_INSTALL_HINT}")
    package = Path(next(iter(spec.submodule_search_locations)))
    triton = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    install = TritonInstall(
        binary=triton / "bin" / "tritonserver",
        libraries=package.parent / "nvidia_pytriton.libs",
        python_backend=triton / "backends" / "python",
        caches=triton / "caches",
        stub=triton / "python_backend_stubs" / version / "triton_python_backend_stub",
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


def lay_out_backends(install: TritonInstall, folder: Path) -> None:
    """Write a backend directory for this Python version.

    Args:
        install: Triton whose files to use.
        folder: Folder to create, the later value of `--backend-directory`.
    """
    python = folder / "python"
    python.mkdir(parents=True)
    # We copy the files (3 MB), since Triton refuses a library whose resolved path is outside of the backend's
    # folder.
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy(install.python_backend / name, python)
    shutil.copy(install.stub, python)
    (folder / "onnxruntime").symlink_to(_PACKAGE_ROOT / "runtime" / "backends" / "onnxruntime")


def lay_out_interpreter(folder: Path, base: Mapping[str, str]) -> None:
    """Write a virtual environment in which a stub finds the packages that this process finds.

    The stub's interpreter uses the virtual environment whose `bin` comes first on PATH, but ignores
    PYTHONPATH (in Triton 2.51 its `sys.flags.ignore_environment` is 1). So it gets its own environment, which
    lists the folders of PYTHONPATH and then the site-packages of this Python with their .pth files (editable
    installs). The interpreter also ignores the locale and accepts only ASCII file names. So links lead to
    paths with other characters, and the environment sets the locale to UTF-8.

    Args:
        folder: Folder to create, the later argument of :func:`environment`.
        base: Environment variables of this process.
    """
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").symlink_to(sys.executable)
    links = _Links(folder / "links")
    home = Path(links.ascii(sys.base_prefix)) / "bin"
    text = f"home = {home}\ninclude-system-site-packages = false\n"
    (folder / "pyvenv.cfg").write_text(text, encoding="utf-8")
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    packages.mkdir(parents=True)
    own = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    lines = [
        'import locale; locale.setlocale(locale.LC_CTYPE, "C.UTF-8")',
        *map(links.ascii, python_path(base).split(os.pathsep)),
        *(f"import site; site.addsitedir({links.ascii(path)!r})" for path in own),
    ]
    (packages / "slipway.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


class _Links:
    """Symbolic links to paths with characters other than ASCII.

    Args:
        folder: Folder of the links; it is created with the first link.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def ascii(self, path: str) -> str:
        """Return a path of ASCII characters that leads to the same place."""
        if path.isascii():
            return path
        self._folder.mkdir(exist_ok=True)
        link = self._folder / str(self._count)
        link.symlink_to(path)
        self._count += 1
        return str(link)


def environment(install: TritonInstall, interpreter: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with which the server must be started.

    The stub embeds a Python interpreter. It must load this Python's own library, since another patch release
    of the same version cannot load its extension modules (`_ssl`, for example).

    Args:
        install: Triton that will be started.
        interpreter: Folder that :func:`lay_out_interpreter` wrote.
        base: Environment variables to extend, usually `os.environ`.
    """
    first = {
        "LD_LIBRARY_PATH": [str(install.libraries), sysconfig.get_config_var("LIBDIR")],
        "PATH": [str(interpreter / "bin"), str(Path(sys.executable).parent)],
    }
    joined = {
        key: os.pathsep.join([*folders, *filter(None, [base.get(key)])]) for key, folders in first.items()
    }
    return {**base, **joined, "PYTHONPATH": python_path(base)}


def python_path(base: Mapping[str, str]) -> str:
    """Return a PYTHONPATH with which another process finds our packages and those on this PYTHONPATH.

    Args:
        base: Environment variables of this process. Relative folders become absolute, since the other process
            has another working directory.
    """
    given = base.get("PYTHONPATH")
    folders = [os.path.abspath(folder) for folder in given.split(os.pathsep)] if given else []  # noqa: PTH100
    return os.pathsep.join([str(_PACKAGE_ROOT.parent), *folders])
