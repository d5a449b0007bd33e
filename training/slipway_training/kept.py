"""What takes long to make and is made in chunks: on the disk, from where an ended process goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_training.recipe import Report

Arrays = Mapping[str, NDArray[Any]]


def kept_chunks(folder: Path, chunks: int, make: Callable[[int], Arrays], report: Report) -> Arrays:
    """Make chunks of arrays, but for those that an earlier process of the same making left.

    Args:
        folder: for a file of each; created where missing.
        chunks: how many, 1 or more.
        make: from a chunk's number to its arrays, by a seed of its own; only their first sizes differ.
        report: called with a line for each that is made.

    Returns:
        Each array of all chunks, one after the other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for chunk in range(chunks):
        file = folder / f"{chunk:04}.npz"
        if not file.exists():
            part = file.with_suffix(".part")
            with part.open("wb") as stream:
                np.savez(stream, **make(chunk))
            part.rename(file)
            report(f"{folder.name}: {chunk + 1} of {chunks} chunks")
        with np.load(file) as arrays:
            found.append(dict(arrays))
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
