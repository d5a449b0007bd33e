"""The pipeline toy_video: a video in blocks, each of which attends to the keys and values of those before.

encode -> for each block: denoise (one Progress per step), decode, deliver, commit to the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.schedules import FewStep
from slipway_serving.diffusion.videos.program import VideoProgram
from slipway_serving.diffusion.videos.video import DenoisedVideo, Tools
from slipway_serving.protocol import images
from slipway_serving.protocol.events import BASE64, Event
from slipway_serving.runtime.metrics import FRAMES
from slipway_serving.runtime.program import Settings
from slipway_serving.video.delivery import frame_parts
from slipway_serving.video.frames import Frames
from slipway_toy.facts import Facts
from slipway_toy.pictures import decode_frames, encode_picture
from slipway_toy.request import ACTIONS, BLOCK_FRAMES, PIXELS_PER_LATENT
from slipway_toy.video_request import ToyVideoRequest

WINDOW = ("keys", "values")
_UNSTEERED = np.zeros((1, BLOCK_FRAMES, ACTIONS), np.float32)


class ToyVideoProgram(VideoProgram[ToyVideoRequest]):
    """Program that answers requests for videos."""

    request = ToyVideoRequest

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._facts = Facts.read(settings.folder)

    def make_video(self, request: ToyVideoRequest, tools: Tools) -> DenoisedVideo:
        """Return the video of a request; see :class:`ToyVideo`."""
        return ToyVideo(request, self._facts, tools)


class ToyVideo(DenoisedVideo):
    """Video of one request; each block is a loop.

    Args:
        request: Request of the caller.
        facts: Facts of the networks.
        tools: What the work uses.

    Raises:
        InvalidRequest: The picture does not fit the exported models.
    """

    carried: Mapping[str, NDArray[np.float32]]

    def __init__(self, request: ToyVideoRequest, facts: Facts, tools: Tools) -> None:
        self._picture = images.pixels(request.image)
        facts.check_size(self._picture.shape, tools.where)
        self._request, self._facts, self._tools = request, facts, tools
        height, width, _ = self._picture.shape
        self._size = height // PIXELS_PER_LATENT, width // PIXELS_PER_LATENT
        self.loops = request.blocks
        self.carried = {name: np.zeros(shape, np.float32) for name, shape in self.carried_shapes.items()}

    @property
    def latents_shape(self) -> tuple[int, ...]:
        """Shape of the latents of a block."""
        return self._facts.block_shape(*self._size)

    @property
    def carried_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the window's keys and values."""
        return dict.fromkeys(WINDOW, self._facts.window_shape(*self._size))

    def encode(self) -> None:
        """Encode the picture."""
        self._condition = encode_picture(self._picture, self._tools.models)

    def schedule(self) -> FewStep:
        """Return the schedule of a block, whose steps draw noise."""
        return self._facts.schedule(self._tools.noise)

    def first_latents(self) -> torch.Tensor:
        """Return the next noise of the seed."""
        return self._tools.noise.next(self.latents_shape)

    def predict(self, latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        """Predict a step of the block with the window before it."""
        answer = self._run(latents.numpy(), float(timestep), ["sample"])
        return torch.from_numpy(answer["sample"])

    def decode(self, latents: NDArray[np.float32]) -> Iterator[Frames]:
        """Decode the block under way."""
        yield decode_frames(latents, self._tools.models)

    def finish(self, latents: NDArray[np.float32]) -> Iterator[Event]:
        """Deliver the block's frames, and commit the block to the window."""
        request, tools = self._request, self._tools
        first_frame, as_text = self.loop * BLOCK_FRAMES, request.output.endswith(BASE64)
        for frames in self.decode(latents):
            tools.recorder.count(FRAMES, len(frames))
            yield from frame_parts(
                frames, first_frame, tools.interruption, as_text=as_text, frames_total=request.frames
            )
        answer = self._run(latents, 0.0, [f"next_{name}" for name in WINDOW])
        self.carried = {name: answer[f"next_{name}"] for name in WINDOW}

    def _run(
        self, latents: NDArray[np.float32], timestep: float, outputs: list[str]
    ) -> dict[str, NDArray[Any]]:
        inputs: dict[str, NDArray[Any]] = {
            "latents": latents,
            "timestep": np.full((1, BLOCK_FRAMES), timestep, np.float32),
            "actions": _UNSTEERED,
            "condition": self._condition,
            "start": np.array([self.loop * BLOCK_FRAMES], np.int64),
            **self.carried,
        }
        return self._tools.models.call("toy_denoiser", inputs, outputs)
