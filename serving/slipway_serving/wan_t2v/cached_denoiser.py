"""The program of a denoiser with a first-block cache: latents in, the predicted flow out.

head -> change -> tail or the cached residual of the tail -> finish. The first block always runs; if what it
adds has changed little since the last step that was computed in full, what the other blocks added then is
added again. The rule is that of diffusers' FirstBlockCacheConfig. A cache belongs to one guidance branch of
one video, waits here between its requests under their correlation id, and is freed when the session ends,
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
from slipway_serving.program import Call, Responses, Settings, Tensors
from slipway_serving.sessions import Sessions

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
    the batch is 1 and the request part of a session. A request with SEQUENCE_END may come without tensors:
    it only frees.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._head, self._change, self._tail, self._finish = (
            Graph(settings, f"{name}.onnx") for name in ("head", "change", "tail", "finish")
        )
        self._sessions: Sessions[Cached | None] = Sessions.of_model(settings)

    def run(self, call: Call) -> Responses:
        """Yield the one response to a call.

        Raises:
            InvalidRequest: the tensors or the session's turn break a rule.
            Overloaded: too many sessions are under way.
            Cancelled: the caller gave up before the larger part of the work.
        """
        if not call.tensors and call.turn.id and call.turn.end:
            self._sessions.free(call.turn)
            yield {}
            return
        self._check(call)
        with self._sessions.turn(call.turn, lambda: None) as taken:
            self._check_shape(call.tensors["hidden_states"], taken.state)
            answer, taken.state = self._denoise(call, taken.state)
        yield answer

    def close(self) -> None:
        """Free all caches."""
        self._sessions.close()

    def _denoise(self, call: Call, before: Cached | None) -> tuple[Tensors, Cached]:
        """Return the answer to a call, and what the last step that was computed in full left."""
        latents = call.tensors["hidden_states"]
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
        return {"sample": sample, "cached": np.array([cached is before])}, cached

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
            f"{name} must be given, got nothing; try it only to end a session"
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
        if (threshold is None) != (not call.turn.id):
            problems.append("cache_threshold must be given exactly when there is a correlation id")
        if threshold is not None and not (np.isfinite(threshold).all() and threshold[0] >= 0):
            problems.append(f"cache_threshold must be finite and at least 0, got {threshold[0]}; try 0.05")
        if threshold is not None and sizes["hidden_states"][0] != 1:
            problems.append(
                f"hidden_states must be a batch of 1 with cache_threshold, got {sizes['hidden_states'][0]}; "
                "try a session for each guidance branch"
            )
        raise_all(self._model, problems)
        self._sessions.check(call.turn)

    def _check_shape(self, latents: NDArray[Any], before: Cached | None) -> None:
        if before is not None and before.shape != latents.shape:
            raise_all(
                self._model,
                [
                    f"hidden_states must be {list(before.shape)} as the session began, got"
                    f" {list(latents.shape)}; try a new session"
                ],
            )
