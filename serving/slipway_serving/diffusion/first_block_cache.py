"""The loop's side of the first-block cache: one session of the denoiser for each guidance branch.

The denoiser (:mod:`slipway_serving.diffusion.cached_denoiser`) keeps a cache per session and decides by
itself; here the branches are asked one by one (each decides for itself, as in diffusers), hits counted, and
caches freed as soon as no step can use them: at the change of denoisers, at the end of guidance, where a loop
begins anew on other latents, at the end of the loop whatever ends it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.program import Models, Tensors
from slipway_serving.turns import Session, Turn, Turns

_NONE: Tensors = MappingProxyType({})


class FirstBlockCache:
    """The caches of one piece of work.

    Args:
        models: reach the denoisers.
        threshold: relative change of the first block up to which the others are not computed anew.
    """

    def __init__(self, models: Models, threshold: float) -> None:
        self._models = models
        self._threshold = np.array([threshold], np.float32)
        self._model = ""
        self._branches: list[Session[Tensors, dict[str, NDArray[Any]]]] = []
        self._asked = self._hits = 0

    @property
    def hit_rate(self) -> float:
        """Share of the denoiser's evaluations that reused the cache, 0 to 1."""
        return self._hits / self._asked if self._asked else 0.0

    def predict(self, model: str, tensors: Tensors, shared: Tensors = _NONE) -> NDArray[np.float32]:
        """Ask a denoiser for the guidance branches of a step.

        Args:
            model: the denoiser.
            tensors: its inputs, a row for each branch; always in the same order.
            shared: its inputs that all branches have in common, without a dimension for them.

        Returns:
            The prediction, a row for each branch, float32.
        """
        branches = len(next(iter(tensors.values())))
        if model != self._model:
            self._free(0)
            self._model = model
        self._free(branches)
        rows = [
            {name: array[branch : branch + 1] for name, array in tensors.items()}
            for branch in range(branches)
        ]
        return np.concatenate([self._ask(branch, {**row, **shared}) for branch, row in enumerate(rows)])

    def forget(self) -> None:
        """Have the caches freed, and go on: the latents to come have nothing to do with those until now."""
        self._free(0)

    def close(self) -> None:
        """Have the caches freed."""
        self._free(0)

    def _ask(self, branch: int, tensors: Tensors) -> NDArray[np.float32]:
        if branch == len(self._branches):
            self._branches.append(self._branch(self._model))
        (answer,) = self._branches[branch].step({**tensors, "cache_threshold": self._threshold})
        self._asked += 1
        self._hits += bool(answer["cached"][0])
        sample: NDArray[np.float32] = answer["sample"]
        return sample

    def _branch(self, model: str) -> Session[Tensors, dict[str, NDArray[Any]]]:
        """Open a session of a denoiser for one guidance branch."""

        def send(tensors: Tensors | None, turn: Turn) -> Iterator[dict[str, NDArray[Any]]]:
            outputs = ["sample", "cached"] if tensors is not None else []
            return self._models.stream(model, tensors or {}, outputs, turn=turn)

        return Session(send, Turns(numbered=True))

    def _free(self, kept: int) -> None:
        """End all sessions but the first so many."""
        while len(self._branches) > kept:
            self._branches.pop().close()


@contextlib.contextmanager
def first_block_cache(models: Models, threshold: float | None) -> Iterator[FirstBlockCache | None]:
    """Open the caches of a piece of work, if it asks for them, and have them freed however it ends."""
    if threshold is None:
        yield None
        return
    with contextlib.closing(FirstBlockCache(models, threshold)) as cache:
        yield cache


def ask(
    models: Models,
    model: str,
    tensors: Tensors,
    cache: FirstBlockCache | None = None,
    shared: Tensors = _NONE,
) -> NDArray[np.float32]:
    """Ask a denoiser for the guidance branches of a step: in one call, or through a cache one by one.

    Args:
        models: reach the denoiser.
        model: the denoiser.
        tensors: its inputs, a row for each branch.
        cache: None without one.
        shared: its inputs that all branches have in common, without a dimension for them.

    Returns:
        The prediction, a row for each branch, float32.
    """
    if cache is not None:
        return cache.predict(model, tensors, shared)
    sample: NDArray[np.float32] = models.call(model, {**tensors, **shared}, ["sample"])["sample"]
    return sample
