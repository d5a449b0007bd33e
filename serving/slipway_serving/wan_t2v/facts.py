"""What the pipeline knows of its checkpoint: ``pipeline.json``, which the export writes, as dataclasses.

Unknown and missing keys are refused, so that an export and a server of different versions do not agree by
accident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from slipway_serving.errors import InvalidRequest
from slipway_serving.wan_t2v.request import Limits

T = TypeVar("T")
Range = tuple[int, int, int]


@dataclass(frozen=True)
class Axes:
    """Ranges of the exported denoisers' axes, each [smallest, usual, largest]."""

    latent_frames: Range
    token_height: Range
    token_width: Range


@dataclass(frozen=True)
class LatentRgb:
    """A linear map from latents to RGB in [-1, 1], for previews.

    Attributes:
        weight: [latent channels, 3].
        bias: [3].
    """

    weight: tuple[tuple[float, float, float], ...]
    bias: tuple[float, float, float]


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
        scheduler: contents of scheduler_config.json, ``_class_name`` included.
        boundary_ratio: share of the noise schedule below which denoiser_low takes over; or None.
        latent_channels: channels of the latents.
        vae_scale_factor_spatial: pixels per latent pixel.
        vae_scale_factor_temporal: frames per latent frame.
        patch_size: of the denoiser: latent frames, rows, columns per token.
        text_tokens: rows of the denoiser's text input.
        axes: ranges that were exported.
        latent_rgb: for previews.
        models: whom to call.
        first_block_cache: whether the denoisers can reuse what their later blocks gave.
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

    @classmethod
    def read(cls, path: Path) -> PipelineFacts:
        """Read ``pipeline.json``.

        Raises:
            InvalidRequest: the file is missing, is no JSON, or has unknown, missing or impossible entries.
        """
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest(
                f"{path}: must be the JSON file that the export writes, got {error}"
            ) from error
        return cls.from_json(raw, str(path))

    @classmethod
    def from_json(cls, raw: Any, where: str) -> PipelineFacts:
        """Build the facts from parsed JSON; see :meth:`read`."""
        facts = _strict(cls, raw, where)
        nested = {"axes": Axes, "latent_rgb": LatentRgb, "models": ModelNames}
        values = {field.name: getattr(facts, field.name) for field in fields(facts)}
        for name, part in nested.items():
            values[name] = _strict(part, values[name], f"{where}: {name}")
        whole = cls(**values)
        if (whole.boundary_ratio is None) != (whole.models.denoiser_low is None):
            raise InvalidRequest(
                f"{where}: boundary_ratio must be given exactly when there is a denoiser_low, "
                f"got {whole.boundary_ratio} and {whole.models.denoiser_low}; try exporting again"
            )
        return whole

    @property
    def limits(self) -> Limits:
        """The ranges of a request's fields that follow from the exported axes."""
        per_latent = self.vae_scale_factor_temporal
        frames = [per_latent * (latents - 1) + 1 for latents in self.axes.latent_frames]
        heights = [
            size * self.patch_size[1] * self.vae_scale_factor_spatial for size in self.axes.token_height
        ]
        widths = [size * self.patch_size[2] * self.vae_scale_factor_spatial for size in self.axes.token_width]
        return Limits(
            frames=(frames[0], frames[2]),
            height=(heights[0], heights[2]),
            width=(widths[0], widths[2]),
            two_experts=self.models.denoiser_low is not None,
            first_block_cache=self.first_block_cache,
        )


def _strict(kind: type[T], raw: Any, where: str) -> T:
    known = {field.name: field.default is MISSING for field in fields(kind)}  # type: ignore[arg-type]
    given = set(raw) if isinstance(raw, Mapping) else set()
    needed = {name for name, is_needed in known.items() if is_needed}
    unknown, missing = sorted(given - set(known)), sorted(needed - given)
    if unknown or missing:
        raise InvalidRequest(
            f"{where}: keys must be {', '.join(known)}, got unknown {unknown} and missing {missing}; "
            "try exporting again with this version"
        )
    return kind(**{name: _frozen(value) for name, value in raw.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
