"""A family's part in the work on one video: what is denoised by which network, and what becomes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.first_block_cache import FirstBlockCache
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import Schedule
from slipway_serving.protocol.events import Event
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import Recorder
from slipway_serving.runtime.program import Models
from slipway_serving.video.frames import Frames


@dataclass(frozen=True)
class Tools:
    """What the work on one video uses.

    Attributes:
        models: Access to the served models.
        interruption: Check for cancellation and the time limit.
        recorder: Recorder of the duration of the steps and of the number of frames.
        noise: Noise of the request's seed; everything random in a video comes from it, in a fixed order.
        cache: First-block cache, or None.
        where: Name of the pipeline, for messages.
    """

    models: Models
    interruption: Interruption
    recorder: Recorder
    noise: Noise
    cache: FirstBlockCache | None
    where: str


class DenoisedVideo(ABC):
    """Video that is denoised in one loop, or section by section in several.

    The constructor checks the request and does no work. The shared loop
    (:mod:`slipway_serving.diffusion.videos.loop`) calls :meth:`encode` once, and for each loop
    :meth:`schedule`, :meth:`first_latents`, :meth:`predict` in each step, and :meth:`finish`. A video that is
    continued is encoded again; what later loops need of earlier ones must therefore be in `carried`.

    Attributes:
        loops: Number of loops.
        loop: Number of the loop under way, from 0; the shared loop sets it.
        carried: Values that later loops need of earlier ones besides the noise: arrays, whole numbers of 0 or
            more, or None, by name. :meth:`finish` replaces the arrays and never changes them in place.
    """

    loops: int = 1
    loop: int = 0
    carried: Mapping[str, NDArray[Any] | int | None] = MappingProxyType({})

    @property
    @abstractmethod
    def latents_shape(self) -> tuple[int, ...]:
        """Shape of the latents of a loop."""

    @property
    def carried_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the arrays in `carried`, by name."""
        return {}

    @abstractmethod
    def encode(self) -> None:
        """Encode the prompt and the other conditions of the request."""

    @abstractmethod
    def schedule(self) -> Schedule:
        """Return a new schedule for the loop under way; each loop has the same number of steps."""

    @abstractmethod
    def first_latents(self) -> torch.Tensor:
        """Return the latents before the first step of the loop under way, float32."""

    @abstractmethod
    def predict(self, latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        """Return the network's prediction for a step, counted from 0, in the shape of the latents."""

    @abstractmethod
    def decode(self, latents: NDArray[np.float32]) -> Iterator[Frames]:
        """Decode clean latents of the loop under way to frames in order of time; nothing is kept."""

    @abstractmethod
    def finish(self, latents: NDArray[np.float32]) -> Iterator[Event]:
        """End the loop under way: yield the parts of the result that its latents complete."""

    def preview(self, latents: NDArray[np.float32]) -> NDArray[np.uint8] | None:
        """Return a picture of the latents after a step, [height, width, 3], if the request asks for one."""
        return None
