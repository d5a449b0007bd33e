"""The program toy_world: each turn of a world denoises a block, commits it and streams its frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.denoise import denoise
from slipway_serving.diffusion.noise import Noise
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event, Progress, tensors
from slipway_serving.protocol.requests import decode_turn
from slipway_serving.runtime.graph import Graph, State
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import DENOISE_STEP, FRAMES
from slipway_serving.runtime.program import Call, Responses, Settings
from slipway_serving.runtime.sessions import Sessions, TurnState
from slipway_serving.video.delivery import frame_parts
from slipway_toy.facts import Facts
from slipway_toy.pictures import decode_frames, encode_picture
from slipway_toy.request import BLOCK_FRAMES, Steering, ToyWorldRequest


@dataclass(frozen=True)
class Place:
    """A world under way.

    Attributes:
        condition: [1, channels, height, width], latents of the first picture.
        noise: goes on over the blocks.
        as_text: whether frames go as base64 text.
        window: keys and values of the blocks before.
        start: frames so far.
    """

    condition: NDArray[np.float32]
    noise: Noise
    as_text: bool
    window: State | dict[str, NDArray[Any]]
    start: int = 0


class ToyWorld:
    """Answers the turns of worlds."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self._model = settings.model
        self._facts = Facts.read(settings.folder)
        self._graph = Graph(settings, "block.onnx")
        self._sessions: Sessions[Place] = Sessions.from_settings(settings)
        self._recorder = settings.recorder
        self._recorder.declare(DENOISE_STEP, FRAMES)

    def run(self, call: Call) -> Responses:
        """Yield the events of one turn; a turn that fails or is left ends its world."""
        self._sessions.check_id(call.turn, fix="a unique id for each world")
        if call.turn.end and not call.tensors:
            self._sessions.drop(call.turn)
            return
        opened, steering = decode_turn(ToyWorldRequest, call.tensors, self._model, call.turn)
        interruption = Interruption(self._model, call.is_cancelled, call.limit_s)
        with self._sessions.turn(call.turn, lambda: self._begun(opened, call)) as world:
            for event in self._block(world, steering, call, interruption):
                yield tensors(event)

    def close(self) -> None:
        """Free all worlds."""
        self._sessions.close()

    def _begun(self, opened: ToyWorldRequest | None, call: Call) -> Place:
        if opened is None:
            raise InvalidRequest(
                f"{self._model}: image must be given in the first turn of a session, got nothing"
            )
        picture = images.pixels(opened.image)
        self._facts.check_size(picture.shape, self._model)
        condition = encode_picture(picture, call.models)
        empty = np.zeros(self._facts.window_shape(*condition.shape[2:]), np.float32)
        window = {"keys": empty, "values": empty}
        return Place(condition, Noise(opened.seed), opened.output.endswith("_base64"), window)

    def _block(
        self, world: TurnState[Place], steering: Steering, call: Call, interruption: Interruption
    ) -> Iterator[Event]:
        """Denoise a block, commit it to the window, and give its frames."""
        place = world.state
        shape = self._facts.block_shape(*place.condition.shape[2:])
        schedule = self._facts.schedule(place.noise)

        def predict(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
            sample = self._run(place, steering, latents, float(timestep))["sample"]
            return torch.from_numpy(sample.numpy())

        latents = place.noise.next(shape)
        steps = denoise(schedule, latents, predict, interruption, self._recorder, self._model)
        for step, denoised in enumerate(steps, 1):
            latents = denoised
            yield Progress(step, len(schedule.timesteps), interruption.elapsed_s())
        committed = self._run(place, steering, latents, 0.0)
        window = {name: committed[f"next_{name}"] for name in place.window}
        world.state = replace(place, window=window, start=place.start + BLOCK_FRAMES)
        frames = decode_frames(latents.numpy(), call.models)
        self._recorder.count(FRAMES, len(frames))
        yield from frame_parts(frames, place.start, interruption, as_text=place.as_text)

    def _run(self, place: Place, steering: Steering, latents: torch.Tensor, timestep: float) -> State:
        inputs = {
            "latents": latents.numpy(),
            "timestep": np.full((1, BLOCK_FRAMES), timestep, np.float32),
            "actions": steering.actions[None],
            "condition": place.condition,
            "start": np.array([place.start], np.int64),
            **place.window,
        }
        return self._graph.run(inputs, in_memory=["sample"])
