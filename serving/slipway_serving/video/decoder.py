"""Program of the causal video decoder: latents in, frames out, one response per latent frame.

A request outside a session is a whole video. In a session, each turn brings the next part of the video, and
the program keeps its caches (1 GB at 720p) between the turns. It frees them when the session ends, fails, is
cancelled or expires.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import Cancelled, Unrecoverable, raise_all
from slipway_serving.protocol.events import tensors
from slipway_serving.protocol.requests import decode_turn
from slipway_serving.protocol.video.requests import DecodedFrames, Decoding
from slipway_serving.runtime.graph import State
from slipway_serving.runtime.program import Call, Last, Responses, Settings
from slipway_serving.runtime.sessions import Sessions
from slipway_serving.runtime.stepped import SteppedModel
from slipway_serving.video.frames import to_uint8


@dataclass(frozen=True)
class DecodingState:
    """State of a video that is being decoded.

    Attributes:
        size: Latent height and width.
        caches: Caches of the latents so far; None before the first.
    """

    size: tuple[int, ...]
    caches: State | None = None


class VideoDecoder:
    """Decoder with one graph for the first latent and another for all later ones.

    It takes a :class:`Decoding` and returns :class:`DecodedFrames`. A request that ends a session may have no
    latents; then it only frees the caches.
    """

    reports_requests = False

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        self._graphs = SteppedModel(settings)
        self._sessions: Sessions[DecodingState] = Sessions.from_settings(settings)

    def run(self, call: Call) -> Responses:
        """Yield the frames of each latent.

        Raises:
            InvalidRequest: The latents or the session's turn break a rule.
            Overloaded: Too many sessions are open.
            Cancelled: The caller cancelled between two latents.
            Unrecoverable: The graphs returned frames that are not finite.
        """
        if not call.tensors and call.turn.id and call.turn.end:
            self._sessions.drop(call.turn)
            return
        latents = decode_turn(Decoding, call.tensors, self._model, call.turn)[1].latents
        self._sessions.check_id(call.turn)
        with self._sessions.turn(call.turn, lambda: DecodingState(latents.shape[3:])) as video:
            self._check_size(latents, video.state)
            for index in range(latents.shape[2]):
                if call.is_cancelled():
                    raise Cancelled(f"{self._model}: cancelled by the caller before latent {index}")
                piece = {"latents": latents[:, :, index : index + 1]}
                outputs, caches = self._graphs.step(piece, video.state.caches)
                video.state = replace(video.state, caches=caches)
                if not np.isfinite(outputs["sample"]).all():
                    raise Unrecoverable(
                        f"{self._model}: frames must be finite, got NaN or infinity in latent {index}"
                    )
                frames = tensors(DecodedFrames(to_uint8(outputs["sample"])))
                yield Last(frames) if index == latents.shape[2] - 1 else frames

    def close(self) -> None:
        """Free all caches."""
        self._sessions.close()

    def _check_size(self, latents: NDArray[Any], video: DecodingState) -> None:
        if video.size != latents.shape[3:]:
            raise_all(
                self._model,
                [
                    f"latents must have the height and width {list(video.size)} of the session's first"
                    " latents, "
                    f"got {list(latents.shape[3:])}; try a new session"
                ],
            )
