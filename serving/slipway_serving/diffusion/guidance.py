"""Classifier-free guidance, and the guidance scale as an input of distilled networks.

With classifier-free guidance the network predicts two branches in a step, the prompt's first, and
:func:`combine_branches` makes one prediction of them; :func:`guided_steps` returns the steps with guidance.
Networks that were distilled with guidance predict one branch and take the scale as a tensor, see
:func:`guidance_embedding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def guided_steps(scale: float, start: float, stop: float, steps: int) -> range:
    """Return the steps with guidance, counted from 0 like diffusers' guiders; empty without guidance.

    Args:
        scale: Guidance scale; 1 or less turns guidance off.
        start: Share of the steps before guidance begins.
        stop: Share of the steps after which guidance ends.
        steps: Number of steps.
    """
    return range(int(start * steps), int(stop * steps)) if scale > 1 else range(0)


def interval_problems(start: float, stop: float) -> list[str]:
    """Return the problems of the interval of guidance: a list of one sentence, or an empty list."""
    if start < stop:
        return []
    return [
        f"guidance_start must be below guidance_stop ({stop}), "
        f"got {start}; try 0.0, or guidance_scale 1.0 for no guidance at all"
    ]


def combine_branches(branches: torch.Tensor, scale: float) -> torch.Tensor:
    """Combine the branches of a step into one prediction.

    Args:
        branches: Predictions, [1 or 2, ...]: the prompt's, and with guidance the negative prompt's.
        scale: Weight of the first branch against the second.

    Returns:
        The prediction, [1, ...], dtype of the branches.
    """
    if len(branches) == 1:
        return branches
    conditional, unconditional = branches[:1], branches[1:]
    return unconditional + scale * (conditional - unconditional)


def guidance_embedding(scale: float) -> NDArray[np.float32]:
    """Return the input of a network with a guidance embedding: the scale times 1000, [1], float32."""
    return np.array([scale * 1000], np.float32)
