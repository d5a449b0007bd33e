"""Private layout of a Triton: its backends for this Python version, and the interpreter of its stubs.

:func:`lay_out_backends` writes a backend directory with `python` (the installation's library and this
Python's stub), the installation's other backends, and `onnxruntime`, which is either the installation's or
ours. :func:`lay_out_interpreter` writes a virtual environment in which the stubs find the packages of this
process. :func:`environment` returns the environment variables with which the server must be started.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from slipway_serving.triton.install.locate import PYTHON_BACKEND_FILES, TritonInstall

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def lay_out_backends(install: TritonInstall, folder: Path, *, native: bool) -> None:
    """Write a backend directory for this Python version.

    Args:
        install: Triton whose backends to use.
        folder: Folder to create, the later value of `--backend-directory`.
        native: True if the Triton's own C++ backend runs ONNX graphs, False if ours does, in Python.
    """
    python = folder / "python"
    python.mkdir(parents=True)
    # We copy the files (3 MB), since Triton refuses a library whose resolved path is outside of the backend's
    # folder.
    for name in PYTHON_BACKEND_FILES:
        shutil.copy(install.backends / "python" / name, python)
    shutil.copy(install.stub, python)
    ours = _PACKAGE_ROOT / "runtime" / "backends" / "onnxruntime"
    links = {path.name: path for path in install.backends.iterdir() if path.is_dir()}
    links |= {} if native else {"onnxruntime": ours}
    for name, target in links.items():
        if name != "python":
            (folder / name).symlink_to(target)


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
