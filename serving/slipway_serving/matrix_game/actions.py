"""The rows of actions that a block is told: those of its frames, and some of the frames before it.

A block that begins with frame f of the video brings its rows from f on, and the network is told of earlier
ones; what lies before the world's first frame has that frame's row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slipway_serving.matrix_game.facts import Facts

Rows = Mapping[str, NDArray[np.float32]]
"""By name of the input, [rows, width] each."""


def joined(before: Rows, actions: Rows, facts: Facts) -> Rows:
    """Return the rows before a block and its own.

    Args:
        before: what :func:`kept` left; nothing before the first block.
        actions: of the block's frames, or one row for all of them.
        facts: of the mode.
    """
    frames = facts.block_frames(first=not before)

    def rows(name: str, new: NDArray[np.float32]) -> NDArray[np.float32]:
        own = np.broadcast_to(new, (frames, new.shape[1]))
        earlier = before[name] if before else np.broadcast_to(own[:1], (facts.actions.before, own.shape[1]))
        return np.concatenate([earlier, own])

    return {name: rows(name, new) for name, new in actions.items()}


def told(rows: Rows, facts: Facts) -> dict[str, NDArray[np.float32]]:
    """Return what the network is told of :func:`joined` rows, [1, rows, width] each."""
    return {name: each[None, : facts.actions.rows] for name, each in rows.items()}


def kept(rows: Rows, facts: Facts) -> Rows:
    """Return the rows that the next block needs of :func:`joined` ones."""
    # Copied: a view would keep the whole array.
    return {name: each[facts.block_frames(first=False) :].copy() for name, each in rows.items()}
