"""Client side of the first-block cache: one session of the denoiser for each guidance branch.

The denoiser (:mod:`slipway_serving.diffusion.cached_denoiser`) keeps a cache per session and decides when to
use it. This module calls it branch by branch (each branch decides for itself, as in diffusers) and counts the
hits. It frees a cache as soon as no step can use it: when the denoiser changes, when guidance ends, when a
loop restarts on other latents, and when the loop ends for any reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
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
        # Inputs of the last step that each branch computed in full.
        self._computed: list[Tensors] = []
        self._evaluations = self._hits = 0
        self._kept: tuple[str, list[Tensors]] = ("", [])

    @property
    def hit_rate(self) -> float:
        """Share of the denoiser's evaluations that reused the cache, 0 to 1."""
        return self._hits / self._evaluations if self._evaluations else 0.0

    def state(self) -> dict[str, Any]:
        """Return what the caches hold, in a form from which they can be computed again.

        The residuals of a branch are as large as all of its tokens (0.7 GB each for Wan2.2 A14B at 480x832
        and 81 frames), so the state has the inputs from which the denoiser computed them.
        """
        rows = [dict(row) for row in self._computed]
        for row in rows[1:]:
            row |= {name: rows[0][name] for name in row if np.array_equal(row[name], rows[0][name])}
        return {"model": self._model, "evaluations": self._evaluations, "hits": self._hits, "branches": rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a :meth:`state`: the next step first computes the residuals of the caches again.

        Raises:
            ValueError: The values are not those of such a state.
        """
        model, rows, counts = state["model"], state["branches"], (state["evaluations"], state["hits"])
        if (
            not isinstance(model, str)
            or not isinstance(rows, list)
            or any(type(n) is not int for n in counts)
        ):
            raise ValueError("the first-block cache must have a model, branches and counts")
        if any(not isinstance(array, np.ndarray) for row in rows for array in dict(row).values()):
            raise ValueError("the branches of the first-block cache must have arrays")
        self._evaluations, self._hits = counts
        self._kept = model, rows

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
        kept_model, kept_rows = self._kept
        self._kept = "", []
        # Only a model that the pipeline itself calls is called here, whatever a state names.
        for row in kept_rows[:branches] if kept_model == model else []:
            self._send(self._open_branch(), row)
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
            self._open_branch()
        answer = self._send(branch, tensors)
        self._evaluations += 1
        self._hits += bool(answer["cached"][0])
        sample: NDArray[np.float32] = answer["sample"]
        return sample

    def _open_branch(self) -> int:
        """Open the session of another branch, and return its number."""
        self._branches.append(self._branch(self._model))
        self._computed.append(_NONE)
        return len(self._branches) - 1

    def _send(self, branch: int, tensors: Tensors) -> Tensors:
        """Return the denoiser's answer for a branch, and remember the inputs of a step computed in full."""
        (answer,) = self._branches[branch].step({**tensors, "cache_threshold": self._threshold})
        if not answer["cached"][0]:
            self._computed[branch] = tensors
        return answer

    def _branch(self, model: str) -> Session[Tensors, dict[str, NDArray[Any]]]:
        """Open a session of a denoiser for one guidance branch."""

        def send(tensors: Tensors | None, turn: Turn) -> Iterator[dict[str, NDArray[Any]]]:
            outputs = ["sample", "cached"] if tensors is not None else []
            return self._models.stream(model, tensors or {}, outputs, turn=turn)

        return Session(send, Turns(numbered=True))

    def _close_branches(self, count: int) -> None:
        """End all sessions except the first `kept` ones."""
        while len(self._branches) > count:
            self._computed.pop()
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
