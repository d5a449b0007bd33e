"""Denoising loop shared by all pipelines: predict, step, check, yield.

A family adds ``predict(latents, timestep, step)``, which chooses the network, its inputs, the guidance and
the cache. The schedules are in :mod:`slipway_serving.diffusion.schedules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from slipway_serving.diffusion.schedules import Schedule
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import DENOISE_STEP, Recorder

Predict = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Function of latents, timestep and step number (from 0); returns the prediction, shape of the latents."""


def denoise(
    schedule: Schedule,
    latents: torch.Tensor,
    predict: Predict,
    interruption: Interruption,
    recorder: Recorder,
    where: str,
    first_step: int = 0,
) -> Iterator[torch.Tensor]:
    """Denoise latents step by step.

    Args:
        schedule: Schedule that gives the timesteps and computes each step.
        latents: Noise, or latents with the noise of the first timestep; float32.
        predict: Function that calls the network.
        interruption: Check for cancellation and time limit, called before each step.
        recorder: Recorder of the duration of each step, in seconds.
        where: Name of the model or request, for messages.
        first_step: Number of the first step, from 0; steps before it were taken earlier, and `latents` and
            `schedule` are as they were after them.

    Yields:
        Latents after each step, same shape and dtype as given.

    Raises:
        Cancelled: The caller cancelled.
        DeadlineExceeded: The time limit has passed.
        Unrecoverable: The latents are no longer finite.
    """
    steps = len(schedule.timesteps)
    for step in range(first_step, steps):
        timestep = schedule.timesteps[step]
        point = f"step {step + 1} of {steps}"
        interruption.check(f"before {point}")
        began_s = interruption.elapsed_s()
        latents = schedule.step(predict(latents, timestep, step), timestep, latents)
        if not torch.isfinite(latents).all():
            raise Unrecoverable(
                f"{where}: latents must be finite, got non-finite values after {point} at timestep "
                f"{timestep.flatten()[-1]:g}; try another precision of the export"
            )
        recorder.observe(DENOISE_STEP, interruption.elapsed_s() - began_s)
        yield latents
