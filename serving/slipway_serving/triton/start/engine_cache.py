"""Folder in which ONNX Runtime's TensorRT provider keeps the engines that it builds."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime.accelerators import ENGINE_CACHE


def create_engine_cache(folder: Path | None) -> None:
    """Create the folder for engines unless it exists or none was asked for.

    Raises:
        InvalidRequest: The path is no folder, or this user cannot write into it.
    """
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(f"server: engine_cache must be a folder that can be written, got {folder}")


def link_engine_cache(folder: Path | None, runtime_folder: Path) -> None:
    """Link the folder for engines into a server's private folder, where the configurations name it.

    Args:
        folder: Folder for engines; None links nothing.
        runtime_folder: Private folder of the server.
    """
    if folder is not None:
        (runtime_folder / ENGINE_CACHE).symlink_to(folder.resolve())
