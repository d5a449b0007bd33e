"""Worlds of any mode that are made by no network; copied beside their model.py."""

from __future__ import annotations

import time

import numpy as np

from slipway_serving.families.matrix_game.request import REQUESTS, BlockMade, actions_of, row_problems
from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.events import FramesPart, tensors
from slipway_serving.protocol.requests import decode_turn
from slipway_serving.runtime.program import Call, Responses, Settings
from slipway_serving.runtime.sessions import Sessions

FIRST_FRAMES, BLOCK_FRAMES = 9, 12
# So that a few worlds are all that it carries, on any machine.
BLOCK_S = 0.1


class PaintedWorld:
    """Answers each turn with as many black frames as a block has."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        self._model = settings.model
        (self._request,) = (each for each in REQUESTS.values() if each.model == settings.model)
        # Of each world the frames so far.
        self._worlds: Sessions[int] = Sessions.from_settings(settings)

    def run(self, call: Call) -> Responses:
        """Yield the events of one turn."""
        if call.turn.end and not call.tensors:
            self._worlds.drop(call.turn)
            return
        _, steering = decode_turn(self._request, call.tensors, self._model, call.turn)
        frames = FIRST_FRAMES if call.turn.start else BLOCK_FRAMES
        raise_all(self._model, row_problems(actions_of(steering), frames))
        with self._worlds.turn(call.turn, lambda: 0) as world:
            first_frame = world.state
            world.state += frames
            time.sleep(BLOCK_S)
            yield tensors(FramesPart(np.zeros((frames, 8, 8, 3), np.uint8), first_frame, elapsed_s=0.0))
            yield tensors(BlockMade(first_frame // BLOCK_FRAMES, world.state, 1000, 0.0, 0.0, 0.0))

    def close(self) -> None:
        """Free all worlds."""
        self._worlds.close()
