"""Program of a denoiser with a first-block cache, for any network that is exported as four graphs.

The graphs run as head -> change -> tail or the cached residual of the tail -> finish. The first block always
runs. If its residual has changed little since the last step that was computed in full, the program adds the
residual of the other blocks from that step again. The rule is that of diffusers' FirstBlockCacheConfig. A
cache belongs to one guidance branch of one request of the pipeline. The program keeps it between the calls
of a session and frees it when the session ends, fails, is cancelled or expires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnxruntime import OrtValue

from slipway_serving.protocol.errors import Cancelled, raise_all
from slipway_serving.protocol.requests import Request, decode_turn
from slipway_serving.runtime.graph import Graph, State
from slipway_serving.runtime.program import Call, Responses, Settings, Tensors
from slipway_serving.runtime.sessions import Sessions


@dataclass(frozen=True)
class CachedResiduals:
    """Residuals of the last step that was computed in full.

    Attributes:
        shape: Shape of the latents of that step.
        residual: Residual of the first block.
        tail_residual: Residual of all other blocks.
    """

    shape: tuple[int, ...]
    residual: OrtValue
    tail_residual: OrtValue


class CachedDenoiser:
    """Denoiser of four graphs that skips the largest one when the request allows it.

    The subclass of a family declares the inputs of the network. ``head.onnx`` takes them and returns
    ``residual``, the residual of the first block, and the inputs of the other graphs. ``change.onnx`` takes
    ``residual`` and ``cached_residual`` and returns ``change``; ``tail.onnx`` returns ``tail_residual``;
    ``finish.onnx`` returns ``sample``. The last two take any outputs of head by name, and finish also takes
    ``tail_residual``.

    The response has ``sample``, with shape and dtype of the latents, and ``cached``, [1], bool, true if the
    tail was skipped. With ``cache_threshold`` the batch is 1 and the request belongs to a session. A request
    that ends a session may have no tensors; then it only frees the cache.

    Attributes:
        request: Request class. Its turns carry the network's inputs, each with a row per guidance branch,
            and ``cache_threshold``.
        latents: Name of the input that must keep its shape within a session.
    """

    request: ClassVar[type[Request]]
    latents: ClassVar[str]
    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._head, self._change, self._tail, self._finish = (
            Graph(settings, f"{name}.onnx") for name in ("head", "change", "tail", "finish")
        )
        self._sessions: Sessions[CachedResiduals | None] = Sessions.from_settings(settings)

    def run(self, call: Call) -> Responses:
        """Yield the one response to a call.

        Raises:
            InvalidRequest: The tensors or the session's turn break a rule.
            Overloaded: Too many sessions are open.
            Cancelled: The caller cancelled before the larger part of the work.
        """
        if not call.tensors and call.turn.id and call.turn.end:
            self._sessions.drop(call.turn)
            yield {}
            return
        _, request_turn = decode_turn(self.request, call.tensors, self._model, call.turn)
        self._check(call, request_turn.cache_threshold)
        with self._sessions.turn(call.turn, lambda: None) as session:
            self._check_shape(call.tensors[self.latents], session.state)
            answer, session.state = self._denoise(call, request_turn.cache_threshold, session.state)
        yield answer

    def close(self) -> None:
        """Free all caches."""
        self._sessions.close()

    def _denoise(
        self, call: Call, threshold: float | None, previous: CachedResiduals | None
    ) -> tuple[Tensors, CachedResiduals]:
        """Return the response to a call, and the residuals of the last step that was computed in full."""
        head = self._head.run(
            {name: _reshape_to_rank(call.tensors[name], rank) for name, rank in self._head.ranks.items()}
        )
        if previous is not None and threshold is not None and self._is_unchanged(head, previous, threshold):
            cached = previous
        else:
            if call.is_cancelled():
                raise Cancelled(f"{self._model}: cancelled by the caller after the first block")
            tail = self._tail.run({name: head[name] for name in self._tail.inputs})
            shape = call.tensors[self.latents].shape
            cached = CachedResiduals(shape, head["residual"], tail["tail_residual"])
        sample = self._sample(head, cached.tail_residual)
        return {"sample": sample, "cached": np.array([cached is previous])}, cached

    def _is_unchanged(self, head: State, previous: CachedResiduals, threshold: float) -> bool:
        residuals = {"residual": head["residual"], "cached_residual": previous.residual}
        change = self._change.run(residuals, in_memory=["change"])["change"].numpy()
        return not change[0] > np.float32(threshold)

    def _sample(self, head: State, tail_residual: OrtValue) -> NDArray[Any]:
        available = {**head, "tail_residual": tail_residual}
        inputs = {name: available[name] for name in self._finish.inputs}
        sample: NDArray[Any] = self._finish.run(inputs, in_memory=["sample"])["sample"].numpy()
        return sample

    def _check(self, call: Call, threshold: float | None) -> None:
        """Refuse a threshold outside a session, and a batch of several rows with a threshold."""
        problems = []
        rows = len(call.tensors[self.latents])
        if (threshold is None) != (not call.turn.id):
            problems.append(
                "cache_threshold must be given in a session, and only there; try it with a session id, or"
                " neither"
            )
        if threshold is not None and rows != 1:
            problems.append(
                f"{self.latents} must be a batch of 1 with cache_threshold, got {rows}; "
                "try a session for each guidance branch"
            )
        raise_all(self._model, problems)
        self._sessions.check_id(call.turn)

    def _check_shape(self, latents: NDArray[Any], previous: CachedResiduals | None) -> None:
        if previous is not None and previous.shape != latents.shape:
            raise_all(
                self._model,
                [
                    f"{self.latents} must keep the shape {list(previous.shape)} of the session's first"
                    " step, got"
                    f" {list(latents.shape)}; try a new session"
                ],
            )


def _reshape_to_rank(array: NDArray[Any], rank: int) -> NDArray[Any]:
    """Return a tensor in its graph's rank: [batch] comes as [batch, 1], since Triton has no empty shape."""
    return array.reshape(array.shape[:rank]) if array.ndim == rank + 1 else array
