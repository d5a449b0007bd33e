"""Components of HunyuanVideo's VAE: the encoder for pictures, the decoder for tiles of latent frames."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.spec import Axis, Component, DType, Loading, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from torch import nn

CONFIG = "vae/config.json"
PATCH = 2
"""Latents per token, along height and width."""
SPATIAL, TEMPORAL = 8, 4
"""Pixels per latent along each side, and video frames per latent frame."""

# Latents and pixels are of the order of 1. Only four matrix products of the attention could be quantized.
VAE_TOLERANCE = {
    Precision.FP32: Tolerance(max_abs=1e-3, relative_l2=1e-4, cosine=0.99999),
    Precision.FP16: Tolerance(max_abs=0.1, relative_l2=2e-2, cosine=0.999),
    Precision.BF16: Tolerance(max_abs=0.5, relative_l2=5e-2, cosine=0.998),
}


def vae_encoder(checkpoint: Checkpoint, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph that maps pictures to the mode and the standard deviation of their latents.

    Args:
        checkpoint: Checkpoint with a part `vae`.
        axes: Axes by name, of which `batch`, `token_height` and `token_width` are used.

    Raises:
        InvalidRequest: The VAE differs from HunyuanVideo's in an entry that the graphs rely on.
    """
    latents = ("batch", vae_config(checkpoint)["latent_channels"], 1, *_plane(PATCH))
    return Component(
        name="vae_encoder",
        inputs=(TensorSpec("image", DType.FLOAT32, ("batch", 3, 1, *_plane(PATCH * SPATIAL))),),
        outputs=tuple(TensorSpec(name, DType.FLOAT32, latents) for name in ("latents", "latents_std")),
        axes=tuple(axes[name] for name in ("batch", "token_height", "token_width")),
        load=partial(_load, checkpoint, "PictureEncoder"),
        tolerance=VAE_TOLERANCE,
        rows=(1, 1),
    )


def vae_decoder(checkpoint: Checkpoint, axes: Mapping[str, Axis]) -> Component:
    """Describe the graph that maps a tile of latent frames to its pixels.

    Args:
        checkpoint: Checkpoint with a part `vae`.
        axes: Axes by name, of which `batch`, `tile_frames`, `token_height` and `token_width` are used.

    Raises:
        InvalidRequest: The VAE is refused as in :func:`vae_encoder`, or tiles may have more than
            `LARGEST_TILE` frames.
    """
    from slipway_export.families.framepack_i2v.vae_networks import LARGEST_TILE

    tiles = axes["tile_frames"]
    if tiles.max > LARGEST_TILE:
        raise InvalidRequest(
            f"axis tile_frames must be at most {LARGEST_TILE}, got {tiles.min}:{tiles.opt}:{tiles.max}"
        )
    latents = ("batch", vae_config(checkpoint)["latent_channels"], "tile_frames", *_plane(PATCH))
    pixels = ("batch", 3, f"{TEMPORAL} * tile_frames - {TEMPORAL - 1}", *_plane(PATCH * SPATIAL))
    return Component(
        name="vae_decoder",
        inputs=(TensorSpec("latents", DType.FLOAT32, latents),),
        outputs=(TensorSpec("sample", DType.FLOAT32, pixels),),
        axes=tuple(axes[name] for name in ("batch", "tile_frames", "token_height", "token_width")),
        load=partial(_load, checkpoint, "TileDecoder"),
        tolerance=VAE_TOLERANCE,
        rows=(1, 1),
        # The ONNX operator Resize has no antialiasing before opset 18.
        lowest_opset=dict.fromkeys(VAE_TOLERANCE, 18) | {Precision.BF16: 22},
    )


def vae_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the VAE's configuration after a check of the entries that the graphs rely on.

    Raises:
        InvalidRequest: An entry has another value; the message names all such entries.
    """
    config = {"latent_channels": 16} | checkpoint.config(CONFIG)
    expected = {"spatial_compression_ratio": SPATIAL, "temporal_compression_ratio": TEMPORAL}
    problems = [
        f"{key} must be {value}, got {config[key]}"
        for key, value in expected.items()
        if config.get(key, value) != value
    ]
    if problems:
        raise InvalidRequest(f"{checkpoint.where(CONFIG)}: {CONFIG}: " + " | ".join(problems))
    return config


def _plane(scale: int) -> tuple[str, str]:
    return f"{scale} * token_height", f"{scale} * token_width"


def _load(checkpoint: Checkpoint, network: str, precision: Precision, loading: Loading) -> nn.Module:
    from diffusers import AutoencoderKLHunyuanVideo

    from slipway_export.families.framepack_i2v import vae_networks

    wrapper: type[nn.Module] = getattr(vae_networks, network)
    return wrapper(checkpoint.load("vae", AutoencoderKLHunyuanVideo, precision, loading))
