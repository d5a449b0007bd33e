"""A Triton in the layout of NGC's images, made from the files of the nvidia-pytriton wheel."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from slipway_serving.triton.install.locate import find_triton


def install_triton(folder: Path) -> Path:
    """Write a Triton as NGC's images have it in /opt/tritonserver, and return its folder."""
    wheel = find_triton()
    for name in ("bin", "backends/python", "caches"):
        (folder / name).mkdir(parents=True)
    shutil.copy(wheel.binary, folder / "bin")
    shutil.copytree(wheel.libraries, folder / "lib", copy_function=_link_or_copy)
    for file in (wheel.backends / "python").iterdir():
        if file.is_file():
            shutil.copy(file, folder / "backends/python")
    shutil.copy(wheel.stub, folder / "backends/python")
    shutil.copytree(wheel.caches / "local", folder / "caches/local")
    (folder / "TRITON_VERSION").write_text(f"{wheel.version}\n")
    return folder


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy(source, target)


def add_library_backend(folder: Path, name: str) -> None:
    """Write a C++ backend into a Triton's folder; its library is empty and cannot be loaded."""
    (folder / "backends" / name).mkdir()
    (folder / "backends" / name / f"libtriton_{name}.so").touch()
