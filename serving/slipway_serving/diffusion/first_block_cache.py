"""Client side of the first-block cache: one session of the denoiser for each guidance branch.

The denoiser (:mod:`slipway_serving.diffusion.cached_denoiser`) keeps a cache per session and decides when to
use it. This module calls it branch by branch (each branch decides for itself, as in diffusers) and counts the
hits. It frees a cache as soon as no step can use it: when the denoiser changes, when guidance ends, when a
loop restarts on other latents, and when the loop ends for any reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.turns import Session, Turn, Turns
from slipway_serving.runtime.program import Models, Tensors

_NONE: Tensors = MappingProxyType({})


class FirstBlockCache:
    """First-block caches of one request.

    Args:
        models: Access to the denoisers.
        threshold: Relative change of the first block up to which the other blocks are skipped.
    """

    def __init__(self, models: Models, threshold: float) -> None:
        self._models = models
        self._threshold = np.array([threshold], np.float32)
        self._model = ""
        self._branches: list[Session[Tensors, dict[str, NDArray[Any]]]] = []
        self._evaluations = self._hits = 0

    @property
    def hit_rate(self) -> float:
        """Share of the denoiser's evaluations that reused the cache, 0 to 1."""
        return self._hits / self._evaluations if self._evaluations else 0.0

    def predict(self, model: str, tensors: Tensors, shared: Tensors = _NONE) -> NDArray[np.float32]:
        """Predict the guidance branches of a step with a denoiser.

        Args:
            model: Name of the denoiser.
            tensors: Inputs of the denoiser, a row for each branch; always in the same order.
            shared: Inputs that all branches have in common, without a dimension for the branches.

        Returns:
            The prediction, a row for each branch, float32.
        """
        branches = len(next(iter(tensors.values())))
        if model != self._model:
            self._close_branches(0)
            self._model = model
        self._close_branches(branches)
        rows = [
            {name: array[branch : branch + 1] for name, array in tensors.items()}
            for branch in range(branches)
        ]
        return np.concatenate([self._evaluate(branch, {**row, **shared}) for branch, row in enumerate(rows)])

    def reset(self) -> None:
        """Free the caches before the loop goes on with latents that are unrelated to the earlier ones."""
        self._close_branches(0)

    def close(self) -> None:
        """Free the caches."""
        self._close_branches(0)

    def _evaluate(self, branch: int, tensors: Tensors) -> NDArray[np.float32]:
        if branch == len(self._branches):
            self._branches.append(self._branch(self._model))
        (answer,) = self._branches[branch].step({**tensors, "cache_threshold": self._threshold})
        self._evaluations += 1
        self._hits += bool(answer["cached"][0])
        sample: NDArray[np.float32] = answer["sample"]
        return sample

    def _branch(self, model: str) -> Session[Tensors, dict[str, NDArray[Any]]]:
        """Open a session of a denoiser for one guidance branch."""

        def send(tensors: Tensors | None, turn: Turn) -> Iterator[dict[str, NDArray[Any]]]:
            outputs = ["sample", "cached"] if tensors is not None else []
            return self._models.stream(model, tensors or {}, outputs, turn=turn)

        return Session(send, Turns(numbered=True))

    def _close_branches(self, count: int) -> None:
        """End all sessions except the first `kept` ones."""
        while len(self._branches) > count:
            self._branches.pop().close()


@contextlib.contextmanager
def first_block_cache(models: Models, threshold: float | None) -> Iterator[FirstBlockCache | None]:
    """Open the caches of a request unless its threshold is None, and free them when the block ends."""
    if threshold is None:
        yield None
        return
    with contextlib.closing(FirstBlockCache(models, threshold)) as cache:
        yield cache


def predict_branches(
    models: Models,
    model: str,
    tensors: Tensors,
    cache: FirstBlockCache | None = None,
    shared: Tensors = _NONE,
) -> NDArray[np.float32]:
    """Predict the guidance branches of a step: all in one call, or one by one through a cache.

    Args:
        models: Access to the denoiser.
        model: Name of the denoiser.
        tensors: Inputs of the denoiser, a row for each branch.
        cache: First-block cache, or None to call the denoiser without one.
        shared: Inputs that all branches have in common, without a dimension for the branches.

    Returns:
        The prediction, a row for each branch, float32.
    """
    if cache is not None:
        return cache.predict(model, tensors, shared)
    sample: NDArray[np.float32] = models.call(model, {**tensors, **shared}, ["sample"])["sample"]
    return sample
