"""Decoding of latents to frames with the served decoder, one latent at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.turns import Session, Turn, Turns
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import FRAMES, Recorder
from slipway_serving.runtime.program import Models, Tensors
from slipway_serving.video.frames import Frames


def decode(
    latents: NDArray[Any],
    model: str,
    models: Models,
    interruption: Interruption,
    recorder: Recorder,
    turns: Turns | None = None,
    *,
    last: bool = True,
) -> Generator[Frames, None, None]:
    """Decode latents in a session of the decoder, which ends after them unless more latents are to come.

    Each latent is one request, since a stream between two models of Triton 2.51 cannot carry an error after a
    response (see :class:`slipway_serving.runtime.program.Models`), and since `interruption` can then check
    before each latent. If the decoding ends early for any reason, the session ends too.

    Args:
        latents: Latents, [1, channels, latent frames, latent height, latent width], float32.
        model: Name of the decoder, which takes :class:`slipway_serving.protocol.video.requests.Decoding`.
        models: Access to the decoder.
        interruption: Check for cancellation and time limit, called before each latent.
        recorder: Counter of the frames.
        turns: Turns of a session that continues over several calls; None for a new session.
        last: True if the session ends with these latents.

    Yields:
        Frames of each latent, [1 or 4, height, width, 3], uint8.
    """
    count = latents.shape[2]

    def send(pieces: Tensors | None, turn: Turn) -> Iterator[dict[str, NDArray[Any]]]:
        return models.stream(model, pieces or {}, ["frames"], turn=turn)

    session = Session(send, turns or Turns(numbered=True))
    try:
        for index in range(count):
            interruption.check(f"before decoding latent {index + 1} of {count}")
            piece = {"latents": np.ascontiguousarray(latents[:, :, index : index + 1])}
            for answer in list(session.step(piece, last=last and index == count - 1)):
                recorder.count(FRAMES, len(answer["frames"]))
                yield answer["frames"]
    except BaseException:
        session.close()
        raise
