"""Facts of a Wan checkpoint for the pipeline: dataclasses of ``pipeline.json``, which the export writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway_serving.families.wan_t2v.request import Limits, listed_defaults
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.video.pictures import Preparation
from slipway_serving.video.preview import LatentRgb

Range = tuple[int, int, int]

TEXT, FIRST_FRAME, CHANNELS = "text", "first_frame", "channels"
CONDITIONINGS = (TEXT, FIRST_FRAME, CHANNELS)
"""How a checkpoint is conditioned besides the prompt: not at all; by a clean first latent frame with timestep
0 (Wan2.2-TI2V); by further channels of the latents and a mask of the known frames (image to video of Wan2.2
and Wan2.1)."""


@dataclass(frozen=True)
class Axes:
    """Ranges of the exported denoisers' axes, each [smallest, usual, largest]."""

    latent_frames: Range
    token_height: Range
    token_width: Range


@dataclass(frozen=True)
class ModelNames:
    """Names of the served models that the pipeline calls.

    Attributes:
        prompt: Prompts to embeddings.
        denoiser_high: Denoiser of the higher noise levels, or of all.
        denoiser_low: Denoiser of the lower noise levels; None for checkpoints with one denoiser.
        vae_decoder: Latents to frames.
        vae_encoder: Pictures to latents; None for checkpoints that take no picture.
        image_encoder: Pictures to CLIP's embeddings; None for denoisers that see none.
    """

    prompt: str
    denoiser_high: str
    denoiser_low: str | None
    vae_decoder: str
    vae_encoder: str | None = None
    image_encoder: str | None = None


@dataclass(frozen=True)
class PipelineFacts:
    """Facts of the checkpoint and of the exported models.

    Attributes:
        scheduler: Contents of scheduler_config.json, ``_class_name`` included.
        boundary_ratio: Share of the noise schedule below which denoiser_low takes over, or None.
        latent_channels: Number of channels of the latents.
        vae_scale_factor_spatial: Pixels per latent pixel.
        vae_scale_factor_temporal: Frames per latent frame.
        patch_size: Patch of the denoiser: latent frames, rows and columns per token.
        text_tokens: Number of rows of the denoiser's text input.
        axes: Ranges of the exported axes.
        latent_rgb: Map from latents to colours, for previews.
        models: Names of the models to call.
        first_block_cache: True if the denoisers have a first-block cache.
        conditioning: Kind of conditioning, one of :data:`CONDITIONINGS`.
        steps_list: Timesteps before the shift, descending, that requests for as many steps take; empty for
            networks that take the scheduler's.
        flow_shift: Shift of the noise schedule by default; None for the scheduler's own.
        distilled: True for a network that distribution matching distillation (DMD) made: each of its steps
            predicts the clean latents and adds fresh noise. The timesteps of `steps_list` are then after the
            shift, and a request must take as many.
        last_images: Fewest and most last pictures of a request.
        preparation: Preparation of pictures for the image encoder; None without one.

    Raises:
        InvalidRequest: There is a boundary without a second denoiser, or the other way round; or the
            conditioning is unknown, or has no encoder of pictures; or a distilled network has no list of
            steps.
    """

    scheduler: Mapping[str, Any]
    boundary_ratio: float | None
    latent_channels: int
    vae_scale_factor_spatial: int
    vae_scale_factor_temporal: int
    patch_size: tuple[int, int, int]
    text_tokens: int
    axes: Axes
    latent_rgb: LatentRgb
    models: ModelNames
    first_block_cache: bool = False
    conditioning: str = TEXT
    steps_list: tuple[int, ...] = ()
    flow_shift: float | None = None
    distilled: bool = False
    last_images: tuple[int, int] = (0, 0)
    preparation: Preparation | None = None

    def __post_init__(self) -> None:
        if (self.boundary_ratio is None) != (self.models.denoiser_low is None):
            raise InvalidRequest(
                f"pipeline.json: boundary_ratio must be given exactly when there is a denoiser_low, "
                f"got {self.boundary_ratio} and {self.models.denoiser_low}; try exporting again"
            )
        if self.conditioning not in CONDITIONINGS:
            raise InvalidRequest(
                f"pipeline.json: conditioning must be one of {', '.join(CONDITIONINGS)}, got"
                f" {self.conditioning!r}; try exporting again with this version"
            )
        if (self.conditioning == TEXT) != (self.models.vae_encoder is None):
            raise InvalidRequest(
                "pipeline.json: vae_encoder must be given exactly when the checkpoint takes pictures, got"
                f" {self.models.vae_encoder} with conditioning {self.conditioning}; try exporting again"
            )
        if (self.preparation is None) != (self.models.image_encoder is None):
            raise InvalidRequest(
                "pipeline.json: preparation must be given exactly when there is an image_encoder, got"
                f" {self.preparation} and {self.models.image_encoder}; try exporting again"
            )
        if self.distilled and not self.steps_list:
            raise InvalidRequest(
                "pipeline.json: steps_list must be given for a distilled network, got none; try exporting"
                " again"
            )

    @property
    def defaults(self) -> Mapping[str, int | float]:
        """Values of the request's fields that are left out, where they differ from the request's own."""
        return listed_defaults(self.steps_list)

    @classmethod
    def read(cls, path: Path) -> PipelineFacts:
        """Read ``pipeline.json``; see :func:`slipway_serving.runtime.json_facts.read_facts`."""
        return read_facts(cls, path)

    @property
    def limits(self) -> Limits:
        """Limits of a request's fields that follow from the exported models."""
        low, high = 0, 2  # These are the indices of a Range.
        temporal, spatial = self.vae_scale_factor_temporal, self.vae_scale_factor_spatial

        def pixels(tokens: Range, patch: int) -> tuple[int, int]:
            return tokens[low] * patch * spatial, tokens[high] * patch * spatial

        latents = self.axes.latent_frames
        return Limits(
            frames=(temporal * (latents[low] - 1) + 1, temporal * (latents[high] - 1) + 1),
            height=pixels(self.axes.token_height, self.patch_size[1]),
            width=pixels(self.axes.token_width, self.patch_size[2]),
            two_experts=self.models.denoiser_low is not None,
            first_block_cache=self.first_block_cache,
            pixels_per_token=spatial * self.patch_size[1],
            takes_image=self.conditioning != TEXT,
            needs_image=self.conditioning == CHANNELS,
            last_images=self.last_images,
            steps_list=self.steps_list if self.distilled else (),
        )
