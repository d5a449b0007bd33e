"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file beside its place and move it there when it is whole.

    Args:
        path: the place.
        write: puts the content into an open file.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
