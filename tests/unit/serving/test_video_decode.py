"""Reaching a decoder from a pipeline: turns of one session, over one call or several."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway_serving.protocol.errors import Cancelled, InvalidRequest
from slipway_serving.protocol.turns import NO_SESSION, Turn, Turns
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import FRAMES, Recorder
from slipway_serving.runtime.program import Tensors
from slipway_serving.video.decode import decode

LATENTS = np.arange(1.0, 7.0, dtype=np.float32).reshape(1, 1, 6, 1, 1)
NOBODY = Interruption("world", lambda: False)


class Decoder(InProcessModels):
    """Draws each latent's running sum, and knows its sessions."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.sums: dict[int | str, float] = {}
        self.turns: list[Turn] = []

    def stream(
        self, model: str, tensors: Tensors, outputs: list[str], *, turn: Turn = NO_SESSION
    ) -> Iterator[dict[str, Any]]:
        assert (model, outputs) == ("decoder", ["frames"])
        self.turns.append(turn)
        if "latents" in tensors:
            assert tensors["latents"].flags.c_contiguous
            self.sums[turn.id] = self.sums.get(turn.id, 0) + float(tensors["latents"].item())
            count = 1 if turn.start else 4
            yield {"frames": np.full((count, 2, 2, 3), self.sums[turn.id], np.uint8)}
        if turn.end:
            self.sums.pop(turn.id)


def test_session_goes_on_over_calls_when_turns_are_handed_in() -> None:
    models, turns, recorder = Decoder(), Turns(numbered=True), Recorder()
    seen = []
    for block in (0, 1):
        latents = LATENTS[:, :, 3 * block : 3 * block + 3]
        parts = decode(latents, "decoder", models, NOBODY, recorder, turns, last=block == 1)
        seen += [(len(part), int(part[0, 0, 0, 0])) for part in parts]
        assert bool(models.sums) == (block == 0)
    assert seen == [(1, 1), (4, 3), (4, 6), (4, 10), (4, 15), (4, 21)]
    assert {turn.id for turn in models.turns} == {turns.id}
    (change,) = recorder.updates()
    assert (change.metric, change.amounts) == (FRAMES, (21.0,))


def test_session_that_goes_on_is_ended_when_a_call_stops_early() -> None:
    models, turns = Decoder(), Turns(numbered=True)
    interruption = Interruption("world", lambda: len(models.turns) == 2)
    with pytest.raises(Cancelled, match="before decoding latent 3 of 6"):
        list(decode(LATENTS, "decoder", models, interruption, Recorder(), turns, last=False))
    assert models.sums == {}
    with pytest.raises(InvalidRequest, match="has ended; begin a new session"):
        list(decode(LATENTS, "decoder", models, NOBODY, Recorder(), turns))


def test_session_is_the_calls_own_and_ends_with_it_when_no_turns_are_handed_in() -> None:
    models = Decoder()
    parts = [len(part) for part in decode(LATENTS[:, :, :3], "decoder", models, NOBODY, Recorder())]
    assert parts == [1, 4, 4]
    assert models.sums == {}
    (own,) = {turn.id for turn in models.turns}
    assert isinstance(own, int)
    assert [(turn.start, turn.end) for turn in models.turns] == [(True, False), (False, False), (False, True)]


def test_session_is_ended_when_its_caller_leaves_in_the_middle() -> None:
    models = Decoder()
    parts = decode(LATENTS, "decoder", models, NOBODY, Recorder())
    next(parts)
    assert len(models.sums) == 1
    parts.close()
    assert models.sums == {}
