"""Request and event of the transformer with a first-block cache: the plain tensors, and a threshold.

The names and shapes are those of the graph `transformer` (`docs/reference/families/framepack_i2v.md`), so
that the pipeline calls both in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.diffusion.fields import CacheThreshold
from slipway_serving.protocol.events import Event, output_field
from slipway_serving.protocol.fields import Array
from slipway_serving.protocol.requests import Request

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


def _latents(frames: str, help_text: str) -> Array:
    shape = ("rows", "latent_channels", frames, "latent_height", "latent_width")
    return Array("float32", shape, help_text)


def _indices(frames: str) -> Array:
    return Array("int64", (frames,), "index in time of each latent frame, the same for all rows")


_OWN = _latents("latent_frames", "noisy latents of a section, or the predicted flow")
_TEXT = Array("float32", ("rows", "text_tokens", "text_width"), "embeddings of prompts")
_PICTURE = Array("float32", ("rows", "image_tokens", "image_width"), "embeddings of pictures")


@dataclass(frozen=True)
class Denoised(Event):
    """Answer of the transformer.

    Attributes:
        sample: Predicted flow, in the shape of the latents, float32.
        cached: True if only the first block was computed.
    """

    sample: Annotated[Floats, _OWN]
    cached: Annotated[bool, output_field("true if only the first block was computed")]


@dataclass(frozen=True)
class TransformerStep(Request):
    """Denoising step of one section, or of several with the same places in time, one row each.

    Attributes:
        hidden_states: Noisy latents, [rows, channels, 9, height / 8, width / 8], float32.
        timestep: Timesteps, [rows], float32, 0 to 1000.
        encoder_hidden_states: Embeddings of the prompts, [rows, text tokens, width], float32.
        encoder_attention_mask: Mask of the prompts, [rows, text tokens], int64, ones followed by zeros.
        pooled_projections: Pooled embeddings of the prompts, [rows, width], float32.
        image_embeds: Embeddings of the pictures, [rows, image tokens, width], float32.
        indices_latents: Places of the latent frames in time, [9], int64.
        guidance: Guidance scale times 1000, [rows], float32.
        latents_clean: Frames seen in full, [rows, channels, 2, height / 8, width / 8], float32.
        indices_latents_clean: Places of these frames, [2], int64.
        latents_history_2x: History seen at half size, [rows, channels, 2, height / 8, width / 8], float32.
        indices_latents_history_2x: Places of these frames, [2], int64.
        latents_history_4x: History seen at a quarter, [rows, channels, 16, height / 8, width / 8], float32.
        indices_latents_history_4x: Places of these frames, [16], int64.
        cache_threshold: Threshold of
            :class:`slipway_serving.families.framepack_i2v.request.ImageToVideoRequest`; with it, the request
            has one row and belongs to a session.
    """

    model: ClassVar[str] = "framepack_i2v_transformer"

    hidden_states: Annotated[Floats, _OWN]
    timestep: Annotated[Floats, Array("float32", ("rows",), "timestep of each row")]
    encoder_hidden_states: Annotated[Floats, _TEXT]
    encoder_attention_mask: Annotated[
        Indices, Array("int64", ("rows", "text_tokens"), "1 for text tokens, 0 for padding")
    ]
    pooled_projections: Annotated[
        Floats, Array("float32", ("rows", "pooled_width"), "pooled embeddings of the prompts")
    ]
    image_embeds: Annotated[Floats, _PICTURE]
    indices_latents: Annotated[Indices, _indices("latent_frames")]
    guidance: Annotated[Floats, Array("float32", ("rows",), "1000 times the guidance scale")]
    latents_clean: Annotated[Floats, _latents("clean_frames", "frames seen at full size")]
    indices_latents_clean: Annotated[Indices, _indices("clean_frames")]
    latents_history_2x: Annotated[Floats, _latents("half_frames", "history seen at half size")]
    indices_latents_history_2x: Annotated[Indices, _indices("half_frames")]
    latents_history_4x: Annotated[Floats, _latents("quarter_frames", "history seen at a quarter")]
    indices_latents_history_4x: Annotated[Indices, _indices("quarter_frames")]
    cache_threshold: CacheThreshold = None


@dataclass(frozen=True)
class Denoising(Request):
    """Request for the steps of one section, as a session of the transformer with a first-block cache."""

    model: ClassVar[str] = TransformerStep.model
    events: ClassVar[tuple[type[Event], ...]] = (Denoised,)
    streams: ClassVar[bool] = False
    turn: ClassVar[type[Request] | None] = TransformerStep
