"""The program of a denoiser with a first-block cache: latents in, the predicted flow out.

head -> change -> tail or the cached residual of the tail -> finish. The first block always runs; if what it
adds has changed little since the last step that was computed in full, what the other blocks added then is
added again. The rule is that of diffusers' FirstBlockCacheConfig. A cache belongs to one guidance branch of
one video, waits here between its requests under their correlation id, and is freed when the sequence ends,
fails, is cancelled or falls idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from slipway_serving.errors import Cancelled, raise_all
from slipway_serving.graph import Graph, State
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.stepped import StateStore

_NEEDED = ("hidden_states", "timestep", "encoder_hidden_states")


@dataclass(frozen=True)
class Cached:
    """What the last step that was computed in full left.

    Attributes:
        shape: of its latents.
        residual: what the first block added.
        tail_residual: what all other blocks added.
    """

    shape: tuple[int, ...]
    residual: OrtValue
    tail_residual: OrtValue


class CachedDenoiser:
    """Denoises with four graphs, the largest of which a request may allow to be skipped.

    Inputs ``hidden_states`` [batch, 16, latent frames, height / 8, width / 8], ``timestep`` [batch, 1] and
    ``encoder_hidden_states`` [batch, text tokens, width], float32; outputs ``sample``, shape and dtype of the
    latents, and ``cached`` [1], bool: whether the tail was skipped. With ``cache_threshold`` [1], float32,
    the batch is 1 and the request part of a sequence. A request with SEQUENCE_END may come without tensors:
    it only frees.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._head, self._change, self._tail, self._finish = (
            Graph(settings, f"{name}.onnx") for name in ("head", "change", "tail", "finish")
        )
        self._under_way: StateStore[Cached] = StateStore.of_model(settings)

    def run(self, call: Call) -> Responses:
        """Yield the one response to a call.

        Raises:
            InvalidRequest: the tensors or the sequence's flags break a rule.
            Overloaded: too many sequences are under way.
            Cancelled: the caller gave up before the larger part of the work.
        """
        with self._under_way.at_work([call.sequence_id]):
            yield from self._denoise(call)

    def close(self) -> None:
        """Free all caches."""
        self._under_way.close()

    def _denoise(self, call: Call) -> Responses:
        if not call.tensors and call.sequence_id and call.end:
            self._under_way.drop(call.sequence_id)
            yield {}
            return
        self._check(call)
        latents = call.tensors["hidden_states"]
        before = self._begin(call, latents.shape)
        head = self._head.run(
            {
                "hidden_states": latents,
                "timestep": call.tensors["timestep"].reshape(-1),
                "encoder_hidden_states": call.tensors["encoder_hidden_states"],
            }
        )
        if before is not None and self._is_near(head, before, call.tensors["cache_threshold"]):
            cached = before
        else:
            if call.is_cancelled():
                raise Cancelled(f"{self._model}: cancelled by the caller after the first block")
            cached = Cached(latents.shape, head["residual"], self._tail_residual(head))
        sample = self._sample(head, cached.tail_residual)
        if call.sequence_id and not call.end:
            self._under_way.put(call.sequence_id, cached)
        yield {"sample": sample, "cached": np.array([cached is before])}

    def _is_near(self, head: State, before: Cached, threshold: NDArray[Any]) -> bool:
        residuals = {"residual": head["residual"], "cached_residual": before.residual}
        change = self._change.run(residuals, in_memory=["change"])["change"].numpy()
        return not change[0] > threshold[0]

    def _tail_residual(self, head: State) -> OrtValue:
        taken = {name: head[name] for name in ("hidden", "timestep_proj", "context")}
        return self._tail.run(taken)["tail_residual"]

    def _sample(self, head: State, tail_residual: OrtValue) -> NDArray[Any]:
        tensors = {"hidden": head["hidden"], "temb": head["temb"], "tail_residual": tail_residual}
        sample: NDArray[Any] = self._finish.run(tensors, in_memory=["sample"])["sample"].numpy()
        return sample

    def _check(self, call: Call) -> None:
        problems = [
            f"{name} must be given, got nothing; try it only to end a sequence"
            for name in _NEEDED
            if name not in call.tensors
        ]
        raise_all(self._model, problems)
        sizes = {name: list(call.tensors[name].shape) for name in _NEEDED}
        if len({shape[0] for shape in sizes.values()}) != 1 or not all(min(s) for s in sizes.values()):
            problems.append(
                f"tensors must have one batch size and no empty dimension, got "
                f"{', '.join(f'{name} {shape}' for name, shape in sizes.items())}"
            )
        threshold = call.tensors.get("cache_threshold")
        if (threshold is None) != (not call.sequence_id):
            problems.append("cache_threshold must be given exactly when there is a correlation id")
        if threshold is not None and not (np.isfinite(threshold).all() and threshold[0] >= 0):
            problems.append(f"cache_threshold must be finite and at least 0, got {threshold[0]}; try 0.05")
        if threshold is not None and sizes["hidden_states"][0] != 1:
            problems.append(
                f"hidden_states must be a batch of 1 with cache_threshold, got {sizes['hidden_states'][0]}; "
                "try a sequence for each guidance branch"
            )
        if (call.start or call.end) and not call.sequence_id:
            problems.append("correlation id must be given with SEQUENCE_START and SEQUENCE_END, got none")
        raise_all(self._model, problems)

    def _begin(self, call: Call, shape: tuple[int, ...]) -> Cached | None:
        if not call.sequence_id:
            return None
        if call.start:
            self._under_way.drop(call.sequence_id)
            self._under_way.make_room()
            return None
        cached = self._under_way.take(call.sequence_id)
        if cached.shape != shape:
            raise_all(
                self._model,
                [
                    f"hidden_states must be {list(cached.shape)} as the sequence began, got {list(shape)}; "
                    "try a new sequence"
                ],
            )
        return cached
