"""Encoding of the prompt and the picture, once for all sections of a video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.diffusion.noise import Noise
from slipway_serving.families.framepack_i2v.facts import Facts
from slipway_serving.families.framepack_i2v.picture import (
    to_image_encoder_input,
    to_vae_input,
)
from slipway_serving.protocol.errors import InvalidRequest, Unrecoverable
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.runtime.program import Models
from slipway_serving.video.pictures import crop_and_resize

Answer = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Encoders:
    """Encoders of a video's prompt and picture.

    Attributes:
        facts: Facts of the checkpoint.
        models: Access to the served encoders.
        interruption: Check for cancellation and the time limit, made before each encoder.
        where: Name of the video's model, for messages.
    """

    facts: Facts
    models: Models
    interruption: Interruption
    where: str

    def prompt(self, prompt: str) -> Answer:
        """Encode a prompt and return the transformer's inputs for it, by name.

        Raises:
            InvalidRequest: The tokenizer refuses the prompt.
            Unrecoverable: An encoder returns non-finite values.
        """
        names, text = self.facts.models, self.facts.prompt
        request_tensors = {"prompt": np.array([prompt.encode()], np.object_)}
        self.interruption.check("before encoding the prompt")
        try:
            ids = self.models.call(names.tokenizer, request_tensors, ["llama_ids", "clip_ids"])
        except InvalidRequest as error:
            raise InvalidRequest(f"{self.where}: prompt: {error}") from error
        text_inputs = {"input_ids": ids["llama_ids"], "attention_mask": np.ones_like(ids["llama_ids"])}
        hidden = self._call(names.llama_text, text_inputs, "hidden_states")[:, text.crop_start :]
        pooled = self._call(names.clip_text, {"input_ids": ids["clip_ids"]}, "pooler_output")
        # The mask hides the padding, so rows up to the graph's smallest size may have any value.
        least = self.facts.axes["text_tokens"][0]
        rows = np.zeros((1, max(least, hidden.shape[1]), hidden.shape[2]), np.float32)
        rows[:, : hidden.shape[1]] = hidden
        mask = (np.arange(rows.shape[1]) < hidden.shape[1]).astype(np.int64)[None]
        return {
            "encoder_hidden_states": rows,
            "encoder_attention_mask": mask,
            "pooled_projections": pooled,
        }

    def picture(
        self, pixels: NDArray[np.uint8], size_px: tuple[int, int], noise: Noise
    ) -> tuple[Answer, NDArray[np.float32]]:
        """Encode the first picture.

        Args:
            pixels: Picture, [height, width, 3], RGB.
            size_px: Height and width of the video.
            noise: Noise of the video; its first numbers sample the latents, as in diffusers.

        Returns:
            The transformer's inputs for the picture, by name, and its latents, [1, channels, 1, height / 8,
            width / 8], float32.

        Raises:
            Unrecoverable: An encoder returns non-finite values.
        """
        names = self.facts.models
        resized = crop_and_resize(pixels, size_px)
        self.interruption.check("before encoding the picture")
        square = {"pixel_values": to_image_encoder_input(resized, self.facts.picture)}
        embeds = self._call(names.siglip_image, square, "last_hidden_state")
        mode, deviation = self._call_outputs(
            names.vae_encoder, {"image": to_vae_input(resized)}, "latents", "latents_std"
        )
        latents = mode + deviation * noise.next(mode.shape).numpy()
        return {"image_embeds": embeds}, latents

    def _call(self, model: str, tensors: Answer, output: str) -> NDArray[Any]:
        return self._call_outputs(model, tensors, output)[0]

    def _call_outputs(self, model: str, tensors: Answer, *outputs: str) -> list[NDArray[Any]]:
        found = self.models.call(model, tensors, list(outputs))
        for name in outputs:
            if not np.isfinite(found[name]).all():
                raise Unrecoverable(
                    f"{self.where}: {name} of {model} must be finite, got non-finite values; try another"
                    " precision of the export"
                )
        return [found[name] for name in outputs]
