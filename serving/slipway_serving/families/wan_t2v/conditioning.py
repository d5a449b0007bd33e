"""Conditioning of Wan's denoisers by the first picture of a video.

The picture is encoded once per video. In each step a :class:`Condition` turns the latents into the denoiser's
inputs, and at the end it puts back the latents that the picture fixes. There are two kinds: Wan2.2-TI2V keeps
the first latent frame clean and gives each latent frame a timestep of its own; Wan2.2-I2V adds channels to
the latents, a mask of the known frames and the latents of a video that is grey after the picture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.families.wan_t2v.facts import CHANNELS, TEXT, PipelineFacts
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.program import Models
from slipway_serving.video.pictures import crop_and_resize, to_encoder_input


class Condition(ABC):
    """Condition of one video besides its prompt."""

    def inputs(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the denoiser's input for latents [1, channels, latent frames, height, width]."""
        return latents

    @abstractmethod
    def timesteps(self, timestep: float, latent_frames: int) -> NDArray[np.float32]:
        """Return the denoiser's input for a timestep, one row, float32."""

    def finished(self, latents: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return clean latents with those that the condition fixes."""
        return latents


class OneTimestep(Condition):
    """Condition of a video from text alone."""

    def timesteps(self, timestep: float, latent_frames: int) -> NDArray[np.float32]:
        """Return the timestep, [1, 1]."""
        return np.full((1, 1), timestep, np.float32)


class FirstFrame(Condition):
    """Condition of Wan2.2-TI2V, whose latent frames have a timestep each.

    Args:
        picture: Latents of the first frame, [1, channels, 1, height, width]; None for a video from text.
    """

    def __init__(self, picture: NDArray[np.float32] | None) -> None:
        self._picture = None if picture is None else torch.from_numpy(picture)

    def inputs(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents with the clean first frame."""
        return latents if self._picture is None else torch.cat([self._picture, latents[:, :, 1:]], dim=2)

    def timesteps(self, timestep: float, latent_frames: int) -> NDArray[np.float32]:
        """Return the timestep of each latent frame, [1, latent frames]; 0 for a clean one."""
        found = np.full((1, latent_frames), timestep, np.float32)
        if self._picture is not None:
            found[:, 0] = 0.0
        return found

    def finished(self, latents: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the latents with the clean first frame."""
        return self.inputs(torch.from_numpy(latents)).numpy()


class FurtherChannels(OneTimestep):
    """Condition of Wan2.2-I2V: a mask of the known frames and the latents of the picture as channels.

    Args:
        picture: Latents of the picture and the frames after it, [1, channels, frames, height, width]; the
            last frame repeats for every later one.
        latent_frames: Number of latent frames of the video.
        frames_per_latent: Number of frames of a latent frame, which is that of the mask's channels.
    """

    def __init__(self, picture: NDArray[np.float32], latent_frames: int, frames_per_latent: int) -> None:
        known = torch.from_numpy(picture)[:, :, :latent_frames]
        later = known[:, :, -1:].expand(-1, -1, latent_frames - known.shape[2], -1, -1)
        mask = torch.zeros(1, frames_per_latent, latent_frames, *known.shape[3:])
        mask[:, :, 0] = 1.0
        self._channels = torch.cat([mask, torch.cat([known, later], dim=2)], dim=1)

    def inputs(self, latents: torch.Tensor) -> torch.Tensor:
        """Return the latents with the further channels."""
        return torch.cat([latents, self._channels], dim=1)


def condition_of(
    request: TextToVideoRequest,
    facts: PipelineFacts,
    latent_frames: int,
    models: Models,
    interruption: Interruption,
    where: str,
) -> Condition:
    """Encode the picture of a request, if it has one, and return the condition of its video.

    Args:
        request: Request that was checked against the facts.
        facts: Facts of the checkpoint.
        latent_frames: Number of latent frames of the video.
        models: Access to the served encoder.
        interruption: Check for cancellation and the time limit.
        where: Name of the pipeline, for messages.

    Raises:
        Unrecoverable: The encoder returned values that are not finite.
    """
    if facts.conditioning == TEXT:
        return OneTimestep()
    if request.image is None or facts.models.vae_encoder is None:
        return FirstFrame(None)
    interruption.check("before encoding the picture")
    pixels = crop_and_resize(images.pixels(request.image), (request.height, request.width))
    tensors = {"image": to_encoder_input(pixels)}
    picture = models.call(facts.models.vae_encoder, tensors, ["latents"])["latents"]
    if not np.isfinite(picture).all():
        raise Unrecoverable(
            f"{where}: latents of {facts.models.vae_encoder} must be finite, got non-finite values; try"
            " another precision of the export"
        )
    if facts.conditioning == CHANNELS:
        return FurtherChannels(picture, latent_frames, facts.vae_scale_factor_temporal)
    return FirstFrame(picture)
