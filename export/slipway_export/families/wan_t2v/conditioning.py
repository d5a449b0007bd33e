"""Kinds of Wan checkpoints by what conditions a video besides its prompt, from their configurations.

`model_index.json` names the pipeline, from which the kind follows; the widths of the parts must fit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.wan_t2v import image_encoder
from slipway_export.networks.wan_vae import picture_encoder
from slipway_export.spec import Axis, Component, Loading
from slipway_serving.families.wan_t2v.facts import CHANNELS, FIRST_FRAME, TEXT
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

DISTILLED = "WanDMDPipeline"
"""FastVideo's pipeline of networks that distribution matching distillation made (FastWan)."""
_PIPELINES = {"WanPipeline": TEXT, "WanImageToVideoPipeline": CHANNELS, DISTILLED: TEXT}


@dataclass(frozen=True)
class Conditioning:
    """Conditioning of a checkpoint's videos besides their prompts.

    Attributes:
        kind: :data:`TEXT`, :data:`FIRST_FRAME` or :data:`CHANNELS`.
        embedded: Number of pictures whose CLIP embeddings the denoiser sees: 0 for Wan2.2, 1 for image to
            video of Wan2.1, 2 for its FLF2V.
        embedding: Tokens and width of a picture's embedding; (0, 0) without an image encoder.
    """

    kind: str
    embedded: int = 0
    embedding: tuple[int, int] = (0, 0)

    @property
    def images(self) -> tuple[int, int]:
        """Fewest and most first pictures of a request."""
        return int(self.kind == CHANNELS), int(self.kind != TEXT)

    @property
    def last_images(self) -> tuple[int, int]:
        """Fewest and most last pictures of a request.

        The denoiser of FLF2V has positions for two pictures, that of Wan2.1's image to video for one. That of
        Wan2.2-I2V sees pictures as further channels only, which have room for a last one.
        """
        if self.kind != CHANNELS or self.embedded == 1:
            return 0, 0
        return int(self.embedded == 2), 1


def conditioning_of(checkpoint: Checkpoint, index: Mapping[str, Any], where: str) -> Conditioning:
    """Return the conditioning of a checkpoint.

    Args:
        checkpoint: Checkpoint; only its configurations are read.
        index: Content of `model_index.json`.
        where: Name of the file, for messages.

    Raises:
        InvalidRequest: The pipeline is none of this family, or its parts do not belong together.
    """
    name = index.get("_class_name")
    if name not in _PIPELINES:
        hint = "; VACE is not supported" if name == "WanVACEPipeline" else ""
        raise InvalidRequest(
            f"{where}: _class_name must be WanPipeline, WanImageToVideoPipeline or {DISTILLED}, got"
            f" {name!r}{hint}"
        )
    kind = FIRST_FRAME if index.get("expand_timesteps") else _PIPELINES[name]
    encoder = (index.get("image_encoder") or [None, None])[1]
    if encoder is None:
        return Conditioning(kind)
    if kind != CHANNELS:
        raise InvalidRequest(
            f"{where}: image_encoder must be null for {name} and expand_timesteps"
            f" {bool(index.get('expand_timesteps'))}, got {encoder}"
        )
    positions = checkpoint.config("transformer/config.json").get("pos_embed_seq_len")
    return Conditioning(kind, 1 if positions is None else 2, image_encoder.embedding_shape(checkpoint))


def check_widths(checkpoint: Checkpoint, parts: Iterable[str], conditioning: Conditioning) -> None:
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
    if conditioning.kind == CHANNELS and isinstance(latents, int):
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
    if conditioning.embedded:
        tokens, width = conditioning.embedding
        encoder = f"of image_encoder ({checkpoint.where('image_encoder')})"
        expected["image_dim"] = (width, f"as hidden_size {encoder}")
        if conditioning.embedded > 1:
            expected["pos_embed_seq_len"] = (2 * tokens, f"for two pictures {encoder}")
    problems = []
    for part in parts:
        config = checkpoint.config(f"{part}/config.json")
        problems += [
            f"{checkpoint.where(part)}: {part}/config.json: {key} must be {value} {reason}, got"
            f" {config.get(key)}"
            for key, (value, reason) in expected.items()
            if config.get(key) != value
        ]
        # A denoiser without the entry returns as many channels as it takes.
        made = config.get("out_channels") or config.get("in_channels")
        if made != latents:
            problems.append(
                f"{checkpoint.where(part)}: {part}/config.json: out_channels must be {latents} as {from_vae},"
                f" got {made}"
            )
    if problems:
        raise InvalidRequest(" | ".join(problems))


def picture_encoders(
    checkpoint: Checkpoint,
    load: Callable[[Loading], AutoencoderKLWan],
    axes: Mapping[str, Axis],
    conditioning: Conditioning,
) -> tuple[Component, ...]:
    """Describe the encoders of pictures: none, that of the VAE, or that of CLIP too."""
    if conditioning.kind == TEXT:
        return ()
    config = checkpoint.config("vae/config.json")
    whole_video = conditioning.kind == CHANNELS
    if whole_video and config.get("is_residual"):
        raise InvalidRequest(
            f"{checkpoint.where('vae')}: vae/config.json: is_residual must be false for an image-to-video"
            " checkpoint without expand_timesteps, got true"
        )
    of_vae = picture_encoder(
        config, load, axes, whole_video=whole_video, last_picture=conditioning.last_images[1] > 0
    )
    if not conditioning.embedded:
        return (of_vae,)
    return of_vae, image_encoder.image_encoder(checkpoint, conditioning.embedded)
