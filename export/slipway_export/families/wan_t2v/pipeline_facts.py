"""Facts of a Wan checkpoint for its served models: `pipeline.json`, usual values and ranges of fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.wan_t2v import image_encoder
from slipway_export.families.wan_t2v.components import load_vae
from slipway_export.families.wan_t2v.conditioning import DISTILLED, Conditioning
from slipway_export.families.wan_t2v.presets import PATCH, TEXT_TOKENS
from slipway_export.spec import Axis, Loading
from slipway_serving.families.wan_t2v.facts import TEXT
from slipway_serving.families.wan_t2v.request import listed_defaults

NAME = "wan_t2v"
SCHEDULER_FILE = "scheduler/scheduler_config.json"
# `dmd_denoising_steps` of every FastWan in fastvideo/configs/pipelines/wan.py of hao-ai-lab/FastVideo; the
# published checkpoints do not state them.
_DISTILLED_STEPS = (1000, 757, 522)


@dataclass(frozen=True)
class Described:
    """A checkpoint as its configurations describe it.

    Attributes:
        checkpoint: Checkpoint.
        index: Content of `model_index.json`.
        conditioning: Conditioning besides the prompt.
        experts: Name of the checkpoint's part for each denoiser.
        axes: Axes of the family by name.
    """

    checkpoint: Checkpoint
    index: Mapping[str, Any]
    conditioning: Conditioning
    experts: Mapping[str, str]
    axes: Mapping[str, Axis]

    @property
    def is_distilled(self) -> bool:
        """Whether distribution matching distillation made the network."""
        return self.index.get("_class_name") == DISTILLED

    @property
    def steps_list(self) -> tuple[int, ...]:
        """Listed timesteps of a network for few steps; none for any other."""
        return self.checkpoint.additions.schedule.steps or (_DISTILLED_STEPS if self.is_distilled else ())


def usual_values(described: Described) -> dict[str, int | float]:
    """Return the video size for which the graphs are tuned, and the defaults of a network for few steps."""
    return _size(described, "opt") | listed_defaults(described.steps_list)


def ranges(described: Described) -> dict[str, tuple[int, int]]:
    """Return the smallest and largest values of a request's fields, for pictures their number."""
    smallest, largest = _size(described, "min"), _size(described, "max")
    found = {name: (int(low), int(largest[name])) for name, low in smallest.items()}
    found["image"] = described.conditioning.images
    found["last_image"] = described.conditioning.last_images
    if described.is_distilled:
        found["steps"] = (len(described.steps_list), len(described.steps_list))
    return found


def _size(described: Described, end: str) -> dict[str, int | float]:
    """Return frames, height and width of a video at one end of the axes: min, opt or max."""
    config = described.checkpoint.config("vae/config.json")
    temporal, spatial = config.get("scale_factor_temporal", 4), config.get("scale_factor_spatial", 8)
    frames, rows, columns = (
        getattr(described.axes[name], end) for name in ("latent_frames", "token_height", "token_width")
    )
    pixels = PATCH * spatial
    return {"frames": temporal * (frames - 1) + 1, "height": pixels * rows, "width": pixels * columns}


def pipeline_facts(described: Described, *, first_block_cache: bool) -> bytes:
    """Return `pipeline.json`: the facts about the checkpoint that the served pipeline needs.

    Args:
        described: Description of the checkpoint.
        first_block_cache: True if the denoisers have a first-block cache.
    """
    from slipway_export.families.wan_t2v.network import fit_latent_rgb

    checkpoint, conditioning = described.checkpoint, described.conditioning
    vae = load_vae(checkpoint, Loading.READ)
    weight, bias = fit_latent_rgb(vae)
    axes = (described.axes[name] for name in ("latent_frames", "token_height", "token_width"))
    facts: dict[str, Any] = {
        "scheduler": checkpoint.config(SCHEDULER_FILE),
        "boundary_ratio": described.index.get("boundary_ratio"),
        "latent_channels": vae.config.z_dim,
        "vae_scale_factor_spatial": vae.config.scale_factor_spatial,
        "vae_scale_factor_temporal": vae.config.scale_factor_temporal,
        "patch_size": [1, PATCH, PATCH],
        "text_tokens": TEXT_TOKENS,
        "axes": {axis.name: [axis.min, axis.opt, axis.max] for axis in axes},
        "latent_rgb": {"weight": weight, "bias": bias},
        "models": _models(described),
    }
    if first_block_cache:
        facts["first_block_cache"] = True
    if conditioning.kind != TEXT:
        facts["conditioning"] = conditioning.kind
    if conditioning.last_images[1]:
        facts["last_images"] = list(conditioning.last_images)
    if conditioning.embedded:
        facts["preparation"] = image_encoder.preparation(checkpoint)
    if described.is_distilled:
        facts |= {"distilled": True, "steps_list": list(described.steps_list)}
    facts |= checkpoint.additions.schedule.facts
    return (json.dumps(facts, indent=2) + "\n").encode()


def _models(described: Described) -> dict[str, str | None]:
    """Return the names of the served models that the pipeline calls."""
    names: dict[str, str | None] = {
        name: f"{NAME}_{name}" if name in described.experts else None
        for name in ("denoiser_high", "denoiser_low")
    }
    names |= {name: f"{NAME}_{name}" for name in ("prompt", "vae_decoder")}
    if described.conditioning.kind != TEXT:
        names["vae_encoder"] = f"{NAME}_vae_encoder"
    if described.conditioning.embedded:
        names["image_encoder"] = f"{NAME}_image_encoder"
    return names
