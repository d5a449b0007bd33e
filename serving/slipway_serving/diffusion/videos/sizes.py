"""Size of a video's state, without work on the video.

The schedule of the video takes some steps with small latents, which shows how many arrays of their shape it
keeps. The shapes of the latents and of what is carried from loop to loop are those of the video.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.videos.video import DenoisedVideo, Tools
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import Recorder

_FLOAT_BYTES = 4
# Schedulers of diffusers keep at most the outputs of three steps (UniPC and DPM-Solver of order 3).
_TRIAL_STEPS = 4
# An axis of one element would let arrays of single numbers pass for latents.
_TRIAL_SHAPE = (1, 2, 1, 2, 2)


@dataclass(frozen=True)
class StateSize:
    """Size of a state without the request's own picture and without a first-block cache.

    Attributes:
        latents: Shape of the latents, float32.
        latents_kept: Number of arrays of the latents' size: the latents and those of the schedule.
        carried_bytes: Size of what is carried from loop to loop.
    """

    latents: tuple[int, ...]
    latents_kept: int
    carried_bytes: int

    @property
    def latents_bytes(self) -> int:
        """Size of the latents."""
        return _FLOAT_BYTES * math.prod(self.latents)

    @property
    def bytes(self) -> int:
        """Size of all arrays."""
        return self.latents_bytes * self.latents_kept + self.carried_bytes


def state_size(video: DenoisedVideo) -> StateSize:
    """Return the largest size of a video's state at the boundary between two steps.

    Args:
        video: Video on which no work was done.
    """
    shapes = video.carried_shapes.values()
    return StateSize(
        video.latents_shape,
        _latents_kept(video),
        _FLOAT_BYTES * sum(math.prod(shape) for shape in shapes),
    )


def unserved_tools(where: str) -> Tools:
    """Return tools for a video on which no work is done: there are no models to call.

    Args:
        where: Name of the pipeline, for messages.
    """
    return Tools(_NoModels(), Interruption(where, lambda: False), Recorder(), Noise(0), None, where)


def _latents_kept(video: DenoisedVideo) -> int:
    """Return the largest number of arrays of the latents' shape that a state has."""
    schedule = video.schedule()
    latents = torch.ones(_TRIAL_SHAPE)
    most = 1
    for timestep in list(schedule.timesteps)[:_TRIAL_STEPS]:
        latents = schedule.step(torch.ones(_TRIAL_SHAPE), timestep, latents)
        arrays = [latents.numpy(), *_arrays(schedule.state())]
        # A state has the same memory once.
        places = {each.__array_interface__["data"][0] for each in arrays if each.shape == _TRIAL_SHAPE}
        most = max(most, len(places))
    return most


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a schedule's state."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _arrays(each)


class _NoModels:
    """Access to no models."""

    def call(self, model: str, *_: Any, **__: Any) -> NoReturn:
        """Refuse the call."""
        raise RuntimeError(f"{model} must not be called for the size of a state")

    stream = call

    def is_ready(self, model: str) -> bool:
        """Return False for every model."""
        return False
