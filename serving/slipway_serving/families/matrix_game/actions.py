"""Rows of actions for a block: those of its own frames and of some frames before it.

A turn carries the rows of its block's frames, and the network also needs rows of earlier frames. Before the
world's first frame, that frame's row is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slipway_serving.families.matrix_game.facts import Facts

Rows = Mapping[str, NDArray[np.float32]]
"""Actions by name of the input, [rows, width] each."""


def append_rows(before: Rows, actions: Rows, facts: Facts) -> Rows:
    """Return the rows before a block followed by its own.

    Args:
        before: Rows from :func:`history_rows`; empty before the first block.
        actions: Actions of the block's frames, or one row for all of them.
        facts: Facts of the mode.
    """
    frames = facts.block_frames(first=not before)

    def rows(name: str, new: NDArray[np.float32]) -> NDArray[np.float32]:
        own = np.broadcast_to(new, (frames, new.shape[1]))
        earlier = before[name] if before else np.broadcast_to(own[:1], (facts.actions.before, own.shape[1]))
        return np.concatenate([earlier, own])

    return {name: rows(name, new) for name, new in actions.items()}


def network_inputs(rows: Rows, facts: Facts) -> dict[str, NDArray[np.float32]]:
    """Return the network's inputs from :func:`append_rows` rows, [1, rows, width] each."""
    return {name: each[None, : facts.actions.rows] for name, each in rows.items()}


def history_rows(rows: Rows, facts: Facts) -> Rows:
    """Return those of the :func:`append_rows` rows that the next block needs."""
    # Copied, because a view would keep the whole array in memory.
    return {name: each[facts.block_frames(first=False) :].copy() for name, each in rows.items()}
