"""Reader of `Wan2.1_VAE.pth`, the VAE under its authors' key names, into diffusers' `AutoencoderKLWan`.

The file has no configuration: widths, blocks and scales follow from the shapes of its encoder, and strict
loading then refuses a file with other tensors that contradict them. The mean and the standard deviation of
latents are in the authors' code and in none of their files; diffusers has the same numbers as defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan

from slipway_export.checkpoint.renamed_weights import Source, SourceOf, load_renamed, shape_of
from slipway_export.checkpoint.torch_file import read_torch_file
from slipway_serving.protocol.errors import InvalidRequest

LATENT_CHANNELS = 16
_FIRST, _LATENTS = "encoder.conv1.weight", "conv2.weight"
_UP = re.compile(r"^decoder\.up_blocks\.(\d+)\.(?:resnets\.(\d+)|upsamplers\.0)\.")
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
    """Return the configuration of :class:`AutoencoderKLWan` that follows from the shapes in a file.

    Args:
        path: Path of the file; its weights are not read.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is of another kind, or lacks keys from which the configuration follows.
    """
    return _config(read_torch_file(path, where, mapped=True), where)


def config_of_shapes(shapes: Mapping[str, tuple[int, ...]], where: str) -> dict[str, Any]:
    """Return the configuration of :class:`AutoencoderKLWan` that follows from a file's shapes.

    Args:
        shapes: Shapes by the file's keys.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The keys from which the configuration follows are missing, or are of another VAE.
    """
    return _config({key: torch.empty(shape, device="meta") for key, shape in shapes.items()}, where)


def load_vae(path: Path, where: str) -> AutoencoderKLWan:
    """Load the VAE of a file, in float32, in eval mode and without gradients.

    Args:
        path: Path of the file.
        where: Name of the file in error messages.

    Raises:
        InvalidRequest: The file is refused as in :func:`vae_config`, or keys are missing, unknown, of another
            shape or not finite.
    """
    state = read_torch_file(path, where, mapped=True)
    with torch.device("meta"):
        vae: AutoencoderKLWan = AutoencoderKLWan.from_config(_config(state, where))
    load_renamed(vae, state, source_of(vae), where)
    return vae.eval().requires_grad_(False)


def source_of(vae: AutoencoderKLWan) -> SourceOf:
    """Return a function that maps a key of diffusers' VAE to its source in the file.

    Args:
        vae: VAE with or without weights.
    """
    # Each size of the decoder has one block more than in the encoder, and one layer for the change of size.
    layers = vae.config.num_res_blocks + 2

    def source(key: str) -> Source:
        if found := _UP.match(key):
            stage, block = found.groups(default=str(layers - 1))
            key = f"decoder.upsamples.{int(stage) * layers + int(block)}.{key[found.end() :]}"
        for pattern, name in _NAMES:
            key = pattern.sub(name, key)
        return Source(key)

    return source


def _config(state: Mapping[str, object], where: str) -> dict[str, Any]:
    """Derive the configuration from the encoder's first convolution, the last one and the layers between."""
    width, channels = (shape_of(state, key, 5, where)[0] for key in (_FIRST, _LATENTS))
    if channels != LATENT_CHANNELS:
        raise InvalidRequest(
            f"{where}: {_LATENTS} must have {LATENT_CHANNELS} channels, got {channels}; the scale of other"
            " latents is not known"
        )
    stages: list[list[int]] = [[]]
    temporal: list[bool] = []
    for layer in range(len({key.split(".")[2] for key in state if key.startswith("encoder.downsamples.")})):
        name = f"encoder.downsamples.{layer}"
        if f"{name}.resample.1.weight" in state:
            temporal.append(f"{name}.time_conv.weight" in state)
            stages.append([])
        else:
            stages[-1].append(shape_of(state, f"{name}.residual.6.weight", 5, where)[0])
    if not all(stages):
        raise InvalidRequest(f"{where}: encoder.downsamples must have residual blocks at each size, got none")
    return {
        "base_dim": width,
        "z_dim": channels,
        "dim_mult": [blocks[-1] // width for blocks in stages],
        "num_res_blocks": len(stages[0]),
        "temperal_downsample": temporal,
        "scale_factor_spatial": 2 ** len(temporal),
        "scale_factor_temporal": 2 ** sum(temporal),
    }
