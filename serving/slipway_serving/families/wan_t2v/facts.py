"""Facts of a Wan checkpoint for the pipeline: dataclasses of ``pipeline.json``, which the export writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway_serving.families.wan_t2v.request import Limits
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.json_facts import read_facts
from slipway_serving.video.preview import LatentRgb

Range = tuple[int, int, int]


@dataclass(frozen=True)
class Axes:
    """Ranges of the exported denoisers' axes, each [smallest, usual, largest]."""

    latent_frames: Range
    token_height: Range
    token_width: Range


@dataclass(frozen=True)
class ModelNames:
    """Names of the served models that the pipeline calls; denoiser_low is None for Wan2.1 checkpoints."""

    prompt: str
    denoiser_high: str
    denoiser_low: str | None
    vae_decoder: str


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

    Raises:
        InvalidRequest: There is a boundary without a second denoiser, or the other way round.
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

    def __post_init__(self) -> None:
        if (self.boundary_ratio is None) != (self.models.denoiser_low is None):
            raise InvalidRequest(
                f"pipeline.json: boundary_ratio must be given exactly when there is a denoiser_low, "
                f"got {self.boundary_ratio} and {self.models.denoiser_low}; try exporting again"
            )

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
        )
