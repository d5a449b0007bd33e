"""Arrays that are computed in chunks and saved to disk, so that an interrupted run can resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_recipes.recipe import Report

Arrays = Mapping[str, NDArray[Any]]


def kept_chunks(folder: Path, chunks: int, make: Callable[[int], Arrays], report: Report) -> Arrays:
    """Compute chunks of arrays, and reuse those that an earlier process of the same run saved.

    Args:
        folder: Folder with one file per chunk; the function creates it if it is missing.
        chunks: Number of chunks, 1 or more.
        make: Function that returns the arrays of a chunk from its number, which also seeds it. Only the
            first sizes of the arrays may differ between chunks.
        report: Callback that receives one line for each chunk that is computed.

    Returns:
        The arrays by name, each concatenated over all chunks along the first axis.
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
