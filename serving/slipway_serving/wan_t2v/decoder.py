"""The program wan_t2v_vae_decoder: latents in, frames out, one response per latent frame.

A request without a correlation id is a whole video. With one, a video comes in several requests between
SEQUENCE_START and SEQUENCE_END, and its caches (1 GB at real size) wait here in between. They are freed when
the session ends, fails, is cancelled or falls idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import Cancelled, Unrecoverable, raise_all
from slipway_serving.graph import State
from slipway_serving.media import to_uint8
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.sessions import Sessions
from slipway_serving.stepped import SteppedModel


@dataclass(frozen=True)
class Decoding:
    """A video under way.

    Attributes:
        size: latent height and width.
        caches: of the latents so far; None before the first.
    """

    size: tuple[int, ...]
    caches: State | None = None


class VaeDecoder:
    """Decodes latents with a first-latent and a next-latent graph.

    Input ``latents`` [1, 16, latent frames, height / 8, width / 8], float32, unit variance; output ``frames``
    [1 or 4, height, width, 3], uint8, per response. A request with SEQUENCE_END may come without latents:
    it only frees.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._graphs = SteppedModel(settings)
        self._sessions: Sessions[Decoding] = Sessions.of_model(settings)

    def run(self, call: Call) -> Responses:
        """Yield the frames of each latent.

        Raises:
            InvalidRequest: the latents or the session's turn break a rule.
            Overloaded: too many sessions are under way.
            Cancelled: the caller gave up between two latents.
            Unrecoverable: the graphs gave something else than numbers.
        """
        if "latents" not in call.tensors and call.turn.id and call.turn.end:
            self._sessions.free(call.turn)
            return
        self._check(call)
        latents = call.tensors["latents"]
        with self._sessions.turn(call.turn, lambda: Decoding(latents.shape[3:])) as decoding:
            self._check_size(latents, decoding.state)
            for index in range(latents.shape[2]):
                if call.is_cancelled():
                    raise Cancelled(f"{self._model}: cancelled by the caller before latent {index}")
                piece = {"latents": latents[:, :, index : index + 1]}
                outputs, caches = self._graphs.step(piece, decoding.state.caches)
                decoding.state = replace(decoding.state, caches=caches)
                if not np.isfinite(outputs["sample"]).all():
                    raise Unrecoverable(
                        f"{self._model}: frames must be finite, got NaN or infinity in latent {index}"
                    )
                yield {"frames": to_uint8(outputs["sample"])}

    def close(self) -> None:
        """Free all caches."""
        self._sessions.close()

    def _check(self, call: Call) -> None:
        problems = []
        latents = call.tensors.get("latents")
        if latents is None:
            problems.append("latents must be given, got nothing; try it only to end a session")
        elif latents.ndim != 5 or min(latents.shape) < 1:
            problems.append(f"latents must have no empty dimension, got shape {list(latents.shape)}")
        elif not np.isfinite(latents).all():
            problems.append("latents must be finite, got NaN or infinity")
        raise_all(self._model, problems)
        self._sessions.check(call.turn)

    def _check_size(self, latents: NDArray[Any], decoding: Decoding) -> None:
        if decoding.size != latents.shape[3:]:
            raise_all(
                self._model,
                [
                    f"latents must be {list(decoding.size)} in height and width as the session began, "
                    f"got {list(latents.shape[3:])}; try a new session"
                ],
            )
