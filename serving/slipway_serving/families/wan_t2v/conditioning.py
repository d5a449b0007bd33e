"""Conditioning of Wan's denoisers by the first picture of a video, or by the first and the last.

Pictures are encoded once per video. In each step a :class:`Condition` turns the latents into the denoiser's
inputs, and at the end it puts back the latents that the picture fixes. There are two kinds: Wan2.2-TI2V
keeps the first latent frame clean and gives each latent frame a timestep of its own; image to video adds
channels to the latents, a mask of the known frames and the latents of a video that is grey between the
pictures. In Wan2.1 the denoiser also sees CLIP's embeddings of the pictures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipway_serving.families.wan_t2v.facts import FIRST_FRAME, TEXT, PipelineFacts
from slipway_serving.families.wan_t2v.request import TextToVideoRequest
from slipway_serving.protocol import images
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.program import Models, Tensors
from slipway_serving.video.pictures import crop_and_resize, to_clip_input, to_encoder_input


class Condition(ABC):
    """Condition of one video besides its prompt.

    Attributes:
        embeds: Further inputs of the denoiser by name, one row each.
    """

    embeds: Mapping[str, NDArray[np.float32]] = MappingProxyType({})

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
    """Condition of image to video: a mask of the known frames and the latents of pictures as channels.

    Args:
        picture: Latents of the first picture and the frames after it, [1, channels, frames, height, width];
            the last frame repeats for every later one.
        latent_frames: Number of latent frames of the video.
        frames_per_latent: Number of frames of a latent frame, which is that of the mask's channels.
        last: Latents of the last latent frame, [1, channels, 1, height, width], if its last frame is known.
        embeds: Further inputs of the denoiser by name, one row each.
    """

    def __init__(
        self,
        picture: NDArray[np.float32],
        latent_frames: int,
        frames_per_latent: int,
        last: NDArray[np.float32] | None = None,
        embeds: Mapping[str, NDArray[np.float32]] = MappingProxyType({}),
    ) -> None:
        self.embeds = embeds
        known = torch.from_numpy(picture)[:, :, :latent_frames]
        later = known[:, :, -1:].expand(-1, -1, latent_frames - known.shape[2], -1, -1)
        latents = torch.cat([known, later], dim=2)
        mask = torch.zeros(1, frames_per_latent, latent_frames, *known.shape[3:])
        mask[:, :, 0] = 1.0
        if last is not None:
            latents[:, :, -1:] = torch.from_numpy(last)
            mask[:, -1, -1] = 1.0
        self._channels = torch.cat([mask, latents], dim=1)

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
    """Encode the pictures of a request, if it has any, and return the condition of its video.

    Args:
        request: Request that was checked against the facts.
        facts: Facts of the checkpoint.
        latent_frames: Number of latent frames of the video.
        models: Access to the served encoders.
        interruption: Check for cancellation and the time limit.
        where: Name of the pipeline, for messages.

    Raises:
        Unrecoverable: An encoder returned values that are not finite.
    """
    if facts.conditioning == TEXT:
        return OneTimestep()
    if request.image is None:
        return FirstFrame(None)
    interruption.check("before encoding the picture")
    given = [request.image] if request.last_image is None else [request.image, request.last_image]
    pictures = [images.pixels(each) for each in given]
    size_px = request.height, request.width
    encoders = _Encoders(facts, models, where)
    latents = encoders.latents(
        [to_encoder_input(crop_and_resize(pixels, size_px)) for pixels in pictures], latent_frames
    )
    if facts.conditioning == FIRST_FRAME:
        return FirstFrame(latents["latents"])
    return FurtherChannels(
        latents["latents"],
        latent_frames,
        facts.vae_scale_factor_temporal,
        latents["last_latents"] if len(pictures) > 1 else None,
        encoders.embeds(pictures),
    )


@dataclass(frozen=True)
class _Encoders:
    """Encoders of a checkpoint's pictures.

    Args:
        facts: Facts of the checkpoint.
        models: Access to the served encoders.
        where: Name of the pipeline, for messages.
    """

    facts: PipelineFacts
    models: Models
    where: str

    def latents(
        self, pictures: Sequence[NDArray[np.float32]], latent_frames: int
    ) -> dict[str, NDArray[np.float32]]:
        """Return the VAE's latents of pictures that have the size of the video."""
        tensors: dict[str, NDArray[Any]] = {"image": pictures[0]}
        outputs = ["latents"]
        if self.facts.last_images[1]:
            # Without a last picture its output is not used.
            tensors["last_image"] = pictures[-1]
            tensors["latent_frames"] = np.array([latent_frames], np.int64)
            outputs.append("last_latents")
        return self._call(self.facts.models.vae_encoder, tensors, outputs)

    def embeds(self, pictures: Sequence[NDArray[np.uint8]]) -> dict[str, NDArray[np.float32]]:
        """Return the denoiser's input of CLIP's embeddings of pictures, one after the other in one row."""
        preparation = self.facts.preparation
        if preparation is None:
            return {}
        prepared = np.concatenate([to_clip_input(pixels, preparation) for pixels in pictures])
        states = self._call(self.facts.models.image_encoder, {"pixel_values": prepared}, ["hidden_states"])[
            "hidden_states"
        ]
        return {"encoder_hidden_states_image": states.reshape(1, -1, states.shape[-1])}

    def _call(
        self, model: str | None, tensors: Tensors, outputs: list[str]
    ) -> dict[str, NDArray[np.float32]]:
        if model is None:
            raise Unrecoverable(f"{self.where}: the encoder of pictures must be served, got none")
        found = self.models.call(model, tensors, outputs)
        for name, values in found.items():
            if not np.isfinite(values).all():
                raise Unrecoverable(
                    f"{self.where}: {name} of {model} must be finite, got non-finite values; try another"
                    " precision of the export"
                )
        return found
