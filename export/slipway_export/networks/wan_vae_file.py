"""Reader of `Wan2.1_VAE.pth` and `Wan2.2_VAE.pth`, the VAEs under their authors' key names, into diffusers'.

The files have no configuration: widths, blocks and scales follow from the shapes of the encoder, and strict
loading then refuses a file with other tensors that contradict them. The layers of Wan2.1's VAE are in one
list, those of Wan2.2's are in a list for each size. The mean and the standard deviation of latents are in the
authors' code and in none of their files (:mod:`slipway_export.networks.wan_latents`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan

from slipway_export.checkpoint.renamed_weights import Source, SourceOf, load_renamed, shape_of
from slipway_export.checkpoint.torch_file import read_torch_file
from slipway_export.networks.wan_latents import latent_scale
from slipway_serving.protocol.errors import InvalidRequest

_LATENT_CHANNELS = 16
_COLORS = 3
_FIRST, _LATENTS, _LAST_NORM = "encoder.conv1.weight", "conv2.weight", "decoder.head.0.gamma"
_LAYERS = "encoder.downsamples"
_RESIDUAL_MARK = f"{_LAYERS}.0.downsamples.0.residual.6.weight"
_UP = re.compile(r"^decoder\.up_blocks\.(\d+)\.(?:resnets\.(\d+)|upsamplers\.0)\.")
# Layers of a size in Wan2.2's VAE: its blocks, then the change of size.
_NESTED = re.compile(r"^(encoder\.down|decoder\.up)_blocks\.(\d+)\.(?:resnets\.(\d+)|(?:down|up)sampler)\.")
# Replacements that turn diffusers' names into the file's, in this order.
_NAMES = (
    (re.compile(r"\.norm1\."), ".residual.0."),
    (re.compile(r"\.conv1\."), ".residual.2."),
    (re.compile(r"\.norm2\."), ".residual.3."),
    (re.compile(r"\.conv2\."), ".residual.6."),
    (re.compile(r"\.conv_shortcut\."), ".shortcut."),
    (re.compile(r"\.mid_block\.resnets\.0\."), ".middle.0."),
    (re.compile(r"\.mid_block\.attentions\.0\."), ".middle.1."),
    (re.compile(r"\.mid_block\.resnets\.1\."), ".middle.2."),
    (re.compile(r"\.down_blocks\."), ".downsamples."),
    (re.compile(r"\.conv_in\."), ".conv1."),
    (re.compile(r"\.norm_out\."), ".head.0."),
    (re.compile(r"\.conv_out\."), ".head.2."),
    (re.compile(r"^quant_conv\."), "conv1."),
    (re.compile(r"^post_quant_conv\."), "conv2."),
)


def vae_config(path: Path, where: str) -> dict[str, Any]:
    """Return the configuration of :class:`AutoencoderKLWan` that follows from the shapes in a Wan2.1 file.

    Args:
        path: Path of the file; its weights are not read.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is of another kind, or lacks keys from which the configuration follows.
    """
    return _config_of_2_1(read_torch_file(path, where, mapped=True), where)


def config_of_shapes(shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, Any]:
    """Return the configuration of :class:`AutoencoderKLWan` that follows from a file's shapes.

    Args:
        shapes: Shapes by the file's keys.
        where: Name of the file in error messages.

    Returns:
        The configuration without the scale of the latents, which no shape tells.

    Raises:
        InvalidRequest: The keys from which the configuration follows are missing, or are of another VAE.
    """
    return _config({key: torch.empty(shape, device="meta") for key, shape in shapes.items()}, where)


def scale_of_latents(channels: int, where: str, stated: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the entries of a configuration for the scale of the latents; none for diffusers' own default.

    Args:
        channels: Number of latent channels.
        where: Name of the file in error messages.
        stated: Configuration beside the file or of the checkpoint; it may state the scale.

    Raises:
        InvalidRequest: The scale is neither stated nor known.
    """
    scale = latent_scale(channels, stated)
    if scale is None:
        raise InvalidRequest(
            f"{where}: {_LATENTS} must have 16 or 48 channels, got {channels}; the scale of other latents is"
            " not known; try a config.json beside the file with latents_mean and latents_std"
        )
    return scale


def load_vae(path: Path, where: str) -> AutoencoderKLWan:
    """Load the VAE of a Wan2.1 file, in float32, in eval mode and without gradients.

    Args:
        path: Path of the file.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is refused as in :func:`vae_config`, or keys are missing, unknown, of another
            shape or not finite.
    """
    state = read_torch_file(path, where, mapped=True)
    with torch.device("meta"):
        vae: AutoencoderKLWan = AutoencoderKLWan.from_config(_config_of_2_1(state, where))
    load_renamed(vae, state, source_of(vae), where)
    return vae.eval().requires_grad_(False)


def source_of(vae: AutoencoderKLWan) -> SourceOf:
    """Return a function that maps a key of diffusers' VAE to its source in the file.

    Args:
        vae: VAE with or without weights.
    """
    blocks = {"encoder.down": vae.config.num_res_blocks, "decoder.up": vae.config.num_res_blocks + 1}
    nested = vae.config.is_residual

    def source(key: str) -> Source:
        if nested and (found := _NESTED.match(key)):
            side, stage, block = found.groups()
            layers = f"{side}samples.{stage}.{side.rpartition('.')[2]}samples"
            key = f"{layers}.{blocks[side] if block is None else block}.{key[found.end() :]}"
        elif found := _UP.match(key):
            # Each size of the decoder has one block more than in the encoder, and one layer to change it.
            layer = blocks["decoder.up"] if found[2] is None else int(found[2])
            first = int(found[1]) * (blocks["decoder.up"] + 1)
            key = f"decoder.upsamples.{first + layer}.{key[found.end() :]}"
        for pattern, name in _NAMES:
            key = pattern.sub(name, key)
        return Source(key)

    return source


def _config_of_2_1(state: Mapping[str, object], where: str) -> dict[str, Any]:
    """Derive the configuration, and refuse Wan2.2's VAE."""
    channels = shape_of(state, _LATENTS, 5, where)[0]
    if channels != _LATENT_CHANNELS:
        raise InvalidRequest(
            f"{where}: {_LATENTS} must have {_LATENT_CHANNELS} channels, got {channels}; try Wan2.1_VAE.pth"
        )
    return _config(state, where)


def _config(state: Mapping[str, object], where: str) -> dict[str, Any]:
    """Derive the configuration from the first convolution, the latents and the encoder's layers."""
    width, colors = shape_of(state, _FIRST, 5, where)[:2]
    channels = shape_of(state, _LATENTS, 5, where)[0]
    stages: list[list[int]] = [[]]
    temporal: list[bool] = []
    for name in _layers(state):
        if f"{name}.resample.1.weight" in state:
            temporal.append(f"{name}.time_conv.weight" in state)
            stages.append([])
        else:
            stages[-1].append(shape_of(state, f"{name}.residual.6.weight", 5, where)[0])
    if not all(stages):
        raise InvalidRequest(f"{where}: {_LAYERS} must have residual blocks at each size, got none")
    patch = math.isqrt(colors // _COLORS)
    config = {
        "base_dim": width,
        "z_dim": channels,
        "dim_mult": [blocks[-1] // width for blocks in stages],
        "num_res_blocks": len(stages[0]),
        "temperal_downsample": temporal,
        "scale_factor_spatial": patch * 2 ** len(temporal),
        "scale_factor_temporal": 2 ** sum(temporal),
    }
    if _RESIDUAL_MARK not in state:
        return config
    return config | {
        "decoder_base_dim": shape_of(state, _LAST_NORM, 4, where)[0] // config["dim_mult"][0],
        "is_residual": True,
        "in_channels": colors,
        "out_channels": colors,
        "patch_size": patch if patch > 1 else None,
    }


def _layers(state: Mapping[str, object]) -> list[str]:
    """Return the names of the encoder's layers before its middle, in order."""
    if _RESIDUAL_MARK not in state:
        count = len({key.split(".")[2] for key in state if key.startswith(f"{_LAYERS}.")})
        return [f"{_LAYERS}.{layer}" for layer in range(count)]
    numbers = {
        (int(key.split(".")[2]), int(key.split(".")[4])) for key in state if key.startswith(f"{_LAYERS}.")
    }
    return [f"{_LAYERS}.{stage}.downsamples.{layer}" for stage, layer in sorted(numbers)]
