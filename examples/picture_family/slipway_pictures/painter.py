"""The program pictures: noise -> denoise with guidance (one Progress per step) -> decode -> Picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from slipway_pictures.facts import Facts
from slipway_pictures.request import CLASSES, PictureRequest
from slipway_serving.diffusion.denoise import denoise
from slipway_serving.diffusion.noise import Noise
from slipway_serving.protocol.events import Picture, Progress, tensors
from slipway_serving.protocol.requests import decode
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.metrics import DENOISE_STEP
from slipway_serving.runtime.program import Call, Responses, Settings
from slipway_serving.video.frames import to_uint8


class Ddim:
    """DDIM's schedule without noise between the steps (Song et al. 2021, equation 12 with sigma 0).

    Args:
        facts: Facts with the variances of the training.
        steps: Number of steps.
    """

    def __init__(self, facts: Facts, steps: int) -> None:
        betas = torch.linspace(facts.beta_start, facts.beta_end, facts.train_steps, dtype=torch.float32)
        self._signal = torch.cumprod(1 - betas, dim=0)
        self._stride = facts.train_steps // steps
        self.timesteps = list(torch.arange(steps - 1, -1, -1) * self._stride)

    def step(self, noise: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents after a step, given the predicted noise in them."""
        before = int(timestep) - self._stride
        after = self._signal[before] if before >= 0 else torch.ones(())
        return after.sqrt() * self._clean(noise, timestep, latents) + (1 - after).sqrt() * noise

    def clean(self, noise: torch.Tensor, step: int, latents: torch.Tensor) -> torch.Tensor:
        """Return the clean latents that the predicted noise of a step stands for."""
        return self._clean(noise, self.timesteps[step], latents)

    def state(self) -> dict[str, Any]:
        """Return nothing, since no step changes the schedule."""
        return {}

    def restore(self, state: Mapping[str, Any], step: int, latents: torch.Tensor) -> None:
        """Do nothing, since no step changes the schedule."""

    def _clean(self, noise: torch.Tensor, timestep: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        now = self._signal[int(timestep)]
        return (latents - (1 - now).sqrt() * noise) / now.sqrt()


class Painter:
    """Program that answers requests for pictures."""

    reports_requests = True

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self._model, self._facts = settings.model, Facts.read(settings.folder)
        self._recorder = settings.recorder
        self._recorder.declare(DENOISE_STEP)

    def run(self, call: Call) -> Responses:
        """Yield a Progress for each step, then the Picture."""
        request = decode(PictureRequest, call.tensors, self._model)
        interruption = Interruption(self._model, call.is_cancelled, request.timeout_s or call.limit_s)
        facts, schedule = self._facts, Ddim(self._facts, request.steps)
        labels = [request.subject, CLASSES] if request.guidance_scale > 1 else [request.subject]

        def predict(latents: torch.Tensor, timestep: torch.Tensor, step: int) -> torch.Tensor:
            inputs = {
                "latents": latents.numpy().repeat(len(labels), axis=0),
                "timestep": np.full((len(labels), 1), int(timestep), np.int64),
                "class_labels": np.array(labels, np.int64)[:, None],
            }
            noise = torch.from_numpy(call.models.call("pictures_denoiser", inputs, ["noise"])["noise"])
            if len(labels) == 1:
                return noise
            with_class, without = noise[:1], noise[1:]
            return without + request.guidance_scale * (with_class - without)

        latents = Noise(request.seed).next((1, facts.channels, facts.sample_size, facts.sample_size))
        steps = denoise(schedule, latents, predict, interruption, self._recorder, self._model)
        for step, denoised in enumerate(steps, 1):
            latents = denoised
            yield tensors(Progress(step, request.steps, interruption.elapsed_s()))
        inputs = {"latents": latents.numpy()}
        sample = call.models.call("pictures_vae_decoder", inputs, ["sample"])["sample"]
        yield tensors(Picture(to_uint8(sample[:, :, None])[0], interruption.elapsed_s()))

    def close(self) -> None:
        """Do nothing, since a picture leaves nothing behind."""
