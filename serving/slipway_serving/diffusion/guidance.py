"""Guidance: the prompt's prediction against the negative prompt's, or a scale that the network itself takes.

With classifier-free guidance a step asks for two branches, the prompt's first, and :func:`combined` makes one
prediction of them; :func:`guided_steps` says which steps those are. Networks that were distilled with it take
the scale as a tensor, :func:`embedded`, and one branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def guided_steps(scale: float, start: float, stop: float, steps: int) -> range:
    """Return the steps with guidance, counted from 0, as diffusers' guiders count them; empty without.

    Args:
        scale: 1 or less turns guidance off.
        start: share of the steps before guidance sets in.
        stop: share of the steps after which it ends.
        steps: how many there are.
    """
    return range(int(start * steps), int(stop * steps)) if scale > 1 else range(0)


def interval_problems(start: float, stop: float) -> list[str]:
    """Return what is wrong with the shares between which guidance works: a list of one sentence, or none."""
    if start < stop:
        return []
    return [
        f"guidance_start must be below guidance_stop ({stop}), "
        f"got {start}; try 0.0, or guidance_scale 1.0 for no guidance at all"
    ]


def combined(branches: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the one prediction of a step.

    Args:
        branches: [1 or 2, ...]: the prompt's prediction, then the negative prompt's where there is guidance.
        scale: weight of the first against the second.

    Returns:
        [1, ...], dtype of the branches.
    """
    if len(branches) == 1:
        return branches
    conditional, unconditional = branches[:1], branches[1:]
    return unconditional + scale * (conditional - unconditional)


def embedded(scale: float, rows: int = 1) -> NDArray[np.float32]:
    """Return the scale as networks with a guidance embedding take it, [rows], float32: in thousandths."""
    return np.full(rows, scale * 1000.0, np.float32)
