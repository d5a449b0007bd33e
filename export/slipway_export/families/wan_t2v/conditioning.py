"""Kinds of Wan checkpoints by what conditions a video besides its prompt, from their configurations.

`model_index.json` names the pipeline, from which the kind follows; the widths of the parts must fit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.networks.wan_vae import picture_encoder
from slipway_export.spec import Axis, Component, Loading
from slipway_serving.families.wan_t2v.facts import CHANNELS, FIRST_FRAME, TEXT
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

_PIPELINES = {"WanPipeline": TEXT, "WanImageToVideoPipeline": CHANNELS}


def conditioning_of(index: Mapping[str, Any], where: str) -> str:
    """Return the conditioning of a checkpoint: :data:`TEXT`, :data:`FIRST_FRAME` or :data:`CHANNELS`.

    Args:
        index: Content of `model_index.json`.
        where: Name of the file, for messages.

    Raises:
        InvalidRequest: The pipeline is none of this family, or it needs an encoder of pictures for its
            denoiser, as Wan2.1 image-to-video does.
    """
    name = index.get("_class_name")
    if name not in _PIPELINES:
        hint = "; VACE is not supported" if name == "WanVACEPipeline" else ""
        raise InvalidRequest(
            f"{where}: _class_name must be WanPipeline or WanImageToVideoPipeline, got {name!r}{hint}"
        )
    if (index.get("image_encoder") or [None, None])[1] is not None:
        raise InvalidRequest(
            f"{where}: image_encoder must be null, got {index['image_encoder'][1]}: image-to-video of Wan2.1,"
            " whose denoiser sees a CLIP embedding, is not supported; try Wan-AI/Wan2.2-I2V-A14B-Diffusers"
        )
    return FIRST_FRAME if index.get("expand_timesteps") else _PIPELINES[name]


def check_widths(checkpoint: Checkpoint, parts: Iterable[str], conditioning: str) -> None:
    """Refuse parts that do not fit together, as parts from different repositories may not.

    Args:
        checkpoint: Checkpoint.
        parts: Names of the denoisers' parts.
        conditioning: Conditioning of the checkpoint.
    """
    vae = checkpoint.config("vae/config.json")
    latents = vae.get("z_dim")
    from_vae = f"z_dim of vae ({checkpoint.where('vae')})"
    channels, why = latents, f"as {from_vae}"
    if conditioning == CHANNELS and isinstance(latents, int):
        temporal = vae.get("scale_factor_temporal", 4)
        channels, why = (
            2 * latents + temporal,
            f"for twice {from_vae} and {temporal} channels of mask",
        )
    text = checkpoint.config("text_encoder/config.json").get("d_model")
    expected = {
        "text_dim": (text, f"as d_model of text_encoder ({checkpoint.where('text_encoder')})"),
        "in_channels": (channels, why),
        "image_dim": (None, "as there is no image_encoder"),
    }
    problems = []
    for part in parts:
        config = checkpoint.config(f"{part}/config.json")
        problems += [
            f"{checkpoint.where(part)}: {part}/config.json: {key} must be {value} {reason}, got"
            f" {config.get(key)}"
            for key, (value, reason) in expected.items()
            if config.get(key) != value
        ]
    if problems:
        raise InvalidRequest(" | ".join(problems))


def vae_encoder(
    checkpoint: Checkpoint,
    load: Callable[[Loading], AutoencoderKLWan],
    axes: Mapping[str, Axis],
    conditioning: str,
) -> tuple[Component, ...]:
    """Describe the encoder of the first picture; nothing for a checkpoint that takes none."""
    if conditioning == TEXT:
        return ()
    config = checkpoint.config("vae/config.json")
    if conditioning == CHANNELS and config.get("is_residual"):
        raise InvalidRequest(
            f"{checkpoint.where('vae')}: vae/config.json: is_residual must be false for an image-to-video"
            " checkpoint without expand_timesteps, got true"
        )
    return (picture_encoder(config, load, axes, whole_video=conditioning == CHANNELS),)
