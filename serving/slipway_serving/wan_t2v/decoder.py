"""The program wan_t2v_vae_decoder: latents in, frames out, one response per latent frame.

A request without a correlation id is a whole video. With one, a video comes in several requests between
SEQUENCE_START and SEQUENCE_END, and its caches (1 GB at real size) wait here in between. They are freed when
the sequence ends, fails, is cancelled or falls idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slipway_serving.errors import Cancelled, Unrecoverable, raise_all
from slipway_serving.graph import State
from slipway_serving.media import to_uint8
from slipway_serving.program import Call, Responses, Settings
from slipway_serving.stepped import StateStore, SteppedModel


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
        self._under_way: StateStore[Decoding] = StateStore.of_model(settings)

    def run(self, call: Call) -> Responses:
        """Yield the frames of each latent.

        Raises:
            InvalidRequest: the latents or the sequence's flags break a rule.
            Overloaded: too many sequences are under way.
            Cancelled: the caller gave up between two latents.
            Unrecoverable: the graphs gave something else than numbers.
        """
        with self._under_way.at_work([call.sequence_id]):
            yield from self._decode(call)

    def close(self) -> None:
        """Free all caches."""
        self._under_way.close()

    def _decode(self, call: Call) -> Responses:
        if "latents" not in call.tensors and call.sequence_id and call.end:
            self._under_way.drop(call.sequence_id)
            return
        self._check(call)
        latents = call.tensors["latents"]
        decoding = self._begin(call, latents.shape[3:])
        for index in range(latents.shape[2]):
            if call.is_cancelled():
                raise Cancelled(f"{self._model}: cancelled by the caller before latent {index}")
            outputs, caches = self._graphs.step(
                {"latents": latents[:, :, index : index + 1]}, decoding.caches
            )
            decoding = replace(decoding, caches=caches)
            if not np.isfinite(outputs["sample"]).all():
                raise Unrecoverable(
                    f"{self._model}: frames must be finite, got NaN or infinity in latent {index}"
                )
            yield {"frames": to_uint8(outputs["sample"])}
        if call.sequence_id and not call.end:
            self._under_way.put(call.sequence_id, decoding)

    def _check(self, call: Call) -> None:
        problems = []
        latents = call.tensors.get("latents")
        if latents is None:
            problems.append("latents must be given, got nothing; try it only to end a sequence")
        elif latents.ndim != 5 or min(latents.shape) < 1:
            problems.append(f"latents must have no empty dimension, got shape {list(latents.shape)}")
        elif not np.isfinite(latents).all():
            problems.append("latents must be finite, got NaN or infinity")
        if (call.start or call.end) and not call.sequence_id:
            problems.append("correlation id must be given with SEQUENCE_START and SEQUENCE_END, got none")
        raise_all(self._model, problems)

    def _begin(self, call: Call, size: tuple[int, ...]) -> Decoding:
        if not call.sequence_id:
            return Decoding(size)
        if call.start:
            self._under_way.drop(call.sequence_id)
            self._under_way.make_room()
            return Decoding(size)
        decoding = self._under_way.take(call.sequence_id)
        if decoding.size != size:
            raise_all(
                self._model,
                [
                    f"latents must be {list(decoding.size)} in height and width as the sequence began, "
                    f"got {list(size)}; try a new sequence"
                ],
            )
        return decoding
