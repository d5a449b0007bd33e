"""Loop over the steps of a video that can be stopped at any boundary between two of them.

:func:`denoise_video` yields the video's events, and after each step a :class:`Boundary`, at which the caller
may read the state and stop. A later call with this state continues with the next step: it encodes the request
again, restores what the steps have changed (latents, history of the scheduler, noise, caches, what the family
carries from section to section), and its further steps are equal to those that were not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from slipway_serving.diffusion.denoise import denoise
from slipway_serving.diffusion.first_block_cache import first_block_cache
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import Schedule
from slipway_serving.diffusion.videos.video import DenoisedVideo, Tools
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event, Progress
from slipway_serving.protocol.snapshots.denoising_states import FIELD
from slipway_serving.protocol.texts import short
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import Recorder
from slipway_serving.runtime.program import Models

MakeVideo = Callable[[Tools], DenoisedVideo]
"""Function that returns the video of a request, from its tools, before any work."""


@dataclass(frozen=True)
class Boundary:
    """Boundary between two steps.

    Attributes:
        step: Number of finished steps, of all loops.
        steps: Number of all steps.
        kept: Function that returns what the loop keeps until the next step, see
            :attr:`slipway_serving.protocol.snapshots.denoising_states.DenoisingState.kept`. It copies nothing
            that later steps change, so the value stays valid.
        clean: Function that returns the clean latents that the last step predicted; None before a first step.
        video: The video.
    """

    step: int
    steps: int
    kept: Callable[[], dict[str, Any]]
    clean: Callable[[], torch.Tensor] | None
    video: DenoisedVideo


def denoise_video(
    make_video: MakeVideo,
    seed: int,
    cache_threshold: float | None,
    models: Models,
    interruption: Interruption,
    recorder: Recorder,
    where: str,
    kept: Mapping[str, Any] | None = None,
) -> Generator[Event | Boundary, None, None]:
    """Work on a video from its beginning or from a state.

    Args:
        make_video: Function that returns the video of the request.
        seed: Seed of the noise.
        cache_threshold: Threshold of the first-block cache; None works without one.
        models: Access to the served models.
        interruption: Check for cancellation and the time limit.
        recorder: Recorder of the duration of the steps.
        where: Name of the pipeline, for messages.
        kept: State of an equal request from :attr:`Boundary.kept`; None begins at the first step.

    Yields:
        A :class:`Progress` and a :class:`Boundary` after each step, and the parts of the result of each loop.
        The first item is the boundary before the next step, once the request is encoded.

    Raises:
        InvalidRequest: The request or the state does not fit the exported models; no work was started.
        Cancelled: The caller cancelled.
        DeadlineExceeded: The time limit has passed.
        Unrecoverable: A model returned something impossible.
    """
    noise = Noise(seed)
    with first_block_cache(models, cache_threshold) as cache:
        tools = Tools(models, interruption, recorder, noise, cache, where)
        video = make_video(tools)
        schedule = video.schedule()
        start = _Position.first() if kept is None else _checked(kept, video, schedule, where)
        video.encode()
        if kept is not None:
            start.restore(kept, video, tools)
        latents = start.latents
        for loop in range(start.loop, video.loops):
            video.loop = loop
            if loop > start.loop:
                schedule, latents = video.schedule(), None
            first_step = start.step if loop == start.loop else 0
            progress = _Loop(video, schedule, tools, first_step)
            if latents is None:
                yield progress.boundary(first_step, None)
                latents = video.first_latents()
            else:
                yield progress.boundary(first_step, latents)
            steps = denoise(schedule, latents, progress.predict, interruption, recorder, where, first_step)
            for step, latents in enumerate(steps, first_step + 1):
                done, total = progress.count(step)
                picture = video.preview(latents.numpy())
                yield Progress(done, total, interruption.elapsed_s(), picture)
                yield progress.boundary(step, latents)
            if cache is not None:
                cache.reset()
            yield from video.finish(latents.numpy())


def finished_video(items: Generator[Event | Boundary, None, None]) -> Generator[Event, None, None]:
    """Yield the events of :func:`denoise_video` without a stop."""
    try:
        for item in items:
            if not isinstance(item, Boundary):
                yield item
    finally:
        items.close()


@dataclass
class _Loop:
    """One loop of a video under way."""

    video: DenoisedVideo
    schedule: Schedule
    tools: Tools
    first_step: int
    _last: tuple[torch.Tensor, torch.Tensor, int] | None = None

    def predict(self, latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
        """Predict a step, and remember the prediction for a draft."""
        prediction = self.video.predict(latents, timestep, step)
        self._last = latents, prediction, step
        return prediction

    def count(self, step: int) -> tuple[int, int]:
        """Return the number of finished steps of all loops after a step of this one, and of all steps."""
        each = len(self.schedule.timesteps)
        return self.video.loop * each + step, self.video.loops * each

    def boundary(self, step: int, latents: torch.Tensor | None) -> Boundary:
        """Return the boundary after a step of this loop."""
        video, loop, cache = self.video, self.video.loop, self.tools.cache

        def kept() -> dict[str, Any]:
            return {
                "loop": loop,
                "step": step,
                "latents": None if latents is None else latents.numpy(),
                "schedule": self.schedule.state(),
                "noise": self.tools.noise.state,
                "cache": None if cache is None else cache.state(),
                "carried": dict(video.carried),
            }

        last = self._last
        clean = None if last is None else lambda: self.schedule.clean(last[1], last[2], last[0])
        return Boundary(*self.count(step), kept, clean, video)


@dataclass(frozen=True)
class _Position:
    """Position of a video between two steps."""

    loop: int
    step: int
    latents: torch.Tensor | None

    @classmethod
    def first(cls) -> _Position:
        return cls(0, 0, None)

    def restore(self, kept: Mapping[str, Any], video: DenoisedVideo, tools: Tools) -> None:
        """Restore what the steps before have changed, except for the schedule, which the check restored."""
        video.loop = self.loop
        given = {name: value for name, value in kept["carried"].items() if value is not None}
        video.carried = {**video.carried, **given}
        # Without latents, the loop draws them next, from noise that the encoders have used as before.
        if self.latents is not None or self.loop:
            tools.noise.restore(kept["noise"])
        if tools.cache is not None and kept["cache"] is not None:
            tools.cache.restore(kept["cache"])


def _checked(kept: Mapping[str, Any], video: DenoisedVideo, schedule: Schedule, where: str) -> _Position:
    """Check that a state fits a video, restore the schedule, and return the position.

    Raises:
        InvalidRequest: It does not fit; the message says why.
    """
    try:
        return _position(kept, video, schedule)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidRequest(f"{where}: {FIELD} must fit the request, got another one: {reason}") from None


def _position(kept: Mapping[str, Any], video: DenoisedVideo, schedule: Schedule) -> _Position:
    """Return the position of a state; raise ValueError if it is not a state of this video."""
    loop, step, latents, steps = kept["loop"], kept["step"], kept["latents"], len(schedule.timesteps)
    if type(loop) is not int or type(step) is not int or not (0 <= loop < video.loops and 0 <= step <= steps):
        raise ValueError(
            f"step {short(step)} of loop {short(loop)} must be within {video.loops} loops of {steps} steps"
        )
    if (latents is None) != (step == 0):
        raise ValueError(f"latents must be given after a first step and only then, got step {step}")
    if latents is not None:
        if not isinstance(latents, np.ndarray) or latents.dtype != np.float32:
            raise ValueError("latents must be float32")
        if latents.shape != video.latents_shape:
            raise ValueError(
                f"latents must have the shape {list(video.latents_shape)}, got {list(latents.shape)}"
            )
    _check_carried(kept["carried"], video)
    # The check of the generator's state needs a generator.
    Noise.at(kept["noise"])
    start = _Position(loop, step, None if latents is None else torch.from_numpy(latents.copy()))
    if start.latents is not None:
        schedule.restore(kept["schedule"], step, start.latents)
    return start


def _check_carried(carried: Mapping[str, Any], video: DenoisedVideo) -> None:
    """Raise ValueError if the values cannot be carried from one loop of a video to another."""
    shapes = video.carried_shapes
    if set(carried) != set(video.carried):
        raise ValueError(f"it must carry {', '.join(video.carried) or 'nothing'}, got {short([*carried])}")
    for name, value in carried.items():
        is_count = name not in shapes and type(value) is int and 0 <= value < 2**31
        fits = isinstance(value, np.ndarray) and value.dtype == np.float32 and value.shape == shapes.get(name)
        if not (is_count or fits or value is None):
            got = list(value.shape) if isinstance(value, np.ndarray) else value
            raise ValueError(
                f"{short(name)} must be an array of shape {list(shapes.get(name, ()))}, got {short(got)}"
            )
