"""Output files: existing files are replaced only on request, and a file appears complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO


def place_problem(path: Path, suffixes: Sequence[str]) -> str:
    """Return the rule that the path of an output file breaks, to be reported before any work, or "".

    Args:
        path: Path of the file.
        suffixes: Suffixes that the file may have.
    """
    if path.suffix not in suffixes:
        return f"must end in {' or '.join(suffixes)}"
    if path.is_dir():
        return "must be a file, not a folder"
    if not path.parent.is_dir():
        return "must be in a folder that exists"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return "must be in a folder that can be written"
    return ""


def replaced_files(files: Mapping[str, Path | None], *, overwrite: bool) -> list[str]:
    """Return a problem for each output file that exists already, to be reported before any work.

    Args:
        files: Paths by the option that names them; None for an option that was left out.
        overwrite: True if the user allows existing files to be replaced.
    """
    if overwrite:
        return []
    return [
        f"{option} must be a file that does not exist yet, got {path}; try another name, or --overwrite"
        for option, path in files.items()
        if path is not None and path.exists()
    ]


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a temporary file beside the target and rename it when it is complete.

    Args:
        path: Target file.
        write: Callback that writes the content into an open file.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            write(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
