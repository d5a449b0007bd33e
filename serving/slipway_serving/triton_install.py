"""Find the Triton that the nvidia-pytriton wheel carries and lay out backends for this Python.

The wheel has one `tritonserver` binary, the Python backend's library and one stub per Python version.
:func:`find_triton` locates them; :func:`lay_out_backends` writes a backend directory that a server
can be pointed at: `python` (the wheel's library, this Python's stub) and `onnxruntime` (ours);
:func:`lay_out_interpreter` writes what lets its stubs find the packages that this process finds.
:func:`environment` is what the server has to be started with.
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

from slipway_serving.distribution import install_hint
from slipway_serving.errors import NotReady

_PACKAGE_ROOT = Path(__file__).resolve().parent
_INSTALL_HINT = f"try {install_hint('server')}"


@dataclass(frozen=True)
class TritonInstall:
    """Where the parts of one Triton lie.

    Attributes:
        binary: the `tritonserver` executable.
        libraries: folder of the shared libraries that it links to.
        python_backend: folder of `libtriton_python.so` and `triton_python_backend_utils.py`.
        caches: folder of the libraries that keep answers.
        stub: the Python backend's stub executable for the running Python version.
    """

    binary: Path
    libraries: Path
    python_backend: Path
    caches: Path
    stub: Path


def find_triton() -> TritonInstall:
    """Locate Triton in the installed nvidia-pytriton wheel, without importing it.

    Raises:
        NotReady: the wheel is not installed, incomplete, or has no stub for this Python version.
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
            f"server: nvidia-pytriton must carry the tritonserver binary, got none in {triton}; "
            "try its Linux x86-64 or arm64 wheel"
        )
    if not install.stub.is_file():
        known = ", ".join(sorted(p.name for p in (triton / "python_backend_stubs").glob("3.*")))
        raise NotReady(f"server: Python must be one of {known}, got {version}; try another Python version")
    return install


def lay_out_backends(install: TritonInstall, folder: Path) -> None:
    """Write a backend directory for this Python version.

    Args:
        install: the Triton to link to.
        folder: created; afterwards the value of `--backend-directory`.
    """
    python = folder / "python"
    python.mkdir(parents=True)
    # Copies (3 MB): Triton refuses a library whose resolved path lies outside the backend's folder.
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy(install.python_backend / name, python)
    shutil.copy(install.stub, python)
    (folder / "onnxruntime").symlink_to(_PACKAGE_ROOT / "backends" / "onnxruntime")


def lay_out_interpreter(folder: Path, base: Mapping[str, str]) -> None:
    """Write a virtual environment in which a stub finds the packages that this process finds.

    The stub's interpreter takes the virtual environment whose `bin` comes first on PATH, but ignores
    PYTHONPATH (in Triton 2.51 its `sys.flags.ignore_environment` is 1). So it gets an environment of its own,
    which names the folders of PYTHONPATH and then the site-packages of this Python, whose .pth files count
    too (editable installs). It also ignores the locale and takes only ASCII in the names of files, so a path
    with other characters is reached through a link, and texts are read as UTF-8 from here on.

    Args:
        folder: created; to be given to :func:`environment`.
        base: the environment of this process.
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
    """Symbolic links to paths that have other characters than those of ASCII.

    Args:
        folder: Folder of the links; made for the first of them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0

    def ascii(self, path: str) -> str:
        """Return a path that has only characters of ASCII and leads to the same place."""
        if path.isascii():
            return path
        self._folder.mkdir(exist_ok=True)
        link = self._folder / str(self._count)
        link.symlink_to(path)
        self._count += 1
        return str(link)


def environment(install: TritonInstall, interpreter: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that the server must be started with.

    The stub is an embedded interpreter: it must load this Python's own library, since another patch
    release of the same version cannot load its extension modules (`_ssl`, for one).

    Args:
        install: the Triton that will be started.
        interpreter: what :func:`lay_out_interpreter` wrote.
        base: the environment to extend, usually `os.environ`.
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
    """Return the PYTHONPATH of a process that is to find our packages and whatever this one finds by its own.

    Args:
        base: the environment of this process. Relative folders become absolute: the other process has another
            working directory.
    """
    given = base.get("PYTHONPATH")
    folders = [os.path.abspath(folder) for folder in given.split(os.pathsep)] if given else []  # noqa: PTH100
    return os.pathsep.join([str(_PACKAGE_ROOT.parent), *folders])
