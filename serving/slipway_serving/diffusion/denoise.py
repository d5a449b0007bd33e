"""The denoising loop, the same for every family: predict, step, check, tell.

What a family adds is ``predict(latents, timestep, step)``: which network is asked, with which inputs, guided
how, cached how. Schedules are in :mod:`slipway_serving.diffusion.schedules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from slipway_serving.diffusion.schedules import Schedule
from slipway_serving.errors import Unrecoverable
from slipway_serving.metrics import DENOISE_STEP, Recorder
from slipway_serving.watch import Watch

Predict = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""From latents, a timestep and the step's number from 0 to the prediction, shape of the latents."""


def denoise(
    schedule: Schedule,
    latents: torch.Tensor,
    predict: Predict,
    watch: Watch,
    recorder: Recorder,
    where: str,
) -> Iterator[torch.Tensor]:
    """Denoise latents step by step.

    Args:
        schedule: gives the timesteps, and takes each step.
        latents: noise, or latents that were noised for the first timestep; float32.
        predict: asks the network.
        watch: asked before each step.
        recorder: takes the seconds of each step.
        where: whose latents they are, for messages.

    Yields:
        The latents after each step, shape and dtype as given.

    Raises:
        Cancelled: the caller gave up.
        DeadlineExceeded: the time limit is passed.
        Unrecoverable: the latents are not finite any more.
    """
    steps = len(schedule.timesteps)
    for step, timestep in enumerate(schedule.timesteps):
        point = f"step {step + 1} of {steps}"
        watch.check(f"before {point}")
        began_s = watch.elapsed_s()
        latents = schedule.step(predict(latents, timestep, step), timestep, latents)
        if not torch.isfinite(latents).all():
            raise Unrecoverable(
                f"{where}: latents must be finite, got non-finite values after {point} at timestep "
                f"{timestep.flatten()[-1]:g}; try another precision of the export"
            )
        recorder.observe(DENOISE_STEP, watch.elapsed_s() - began_s)
        yield latents
