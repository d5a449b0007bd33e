"""Differences between the causal video VAEs of Wan and HunyuanVideo that training needs.

`causal_vae` trains either on whole clips. A form describes how diffusers' network processes a clip at once,
which initial weights pass a clip through it, and where it stores the statistics of its latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from diffusers import AutoencoderKLHunyuanVideo, AutoencoderKLWan
from diffusers.models.attention_processor import Attention
from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoResnetBlockCausal3D
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock, WanResample, WanResidualBlock
from torch import Tensor, nn

Vae: TypeAlias = AutoencoderKLWan | AutoencoderKLHunyuanVideo


@dataclass(frozen=True)
class Form:
    """Description of a kind of causal video VAE.

    Args:
        network: Class of the network in diffusers.
        channels: Key of the configuration for the number of latent channels.
        whole: Context manager in which encoder and decoder process whole clips.
        branch_ends: Function that returns the last layers of residual branches, which start small.
        keep_frames: Function that initializes layers that change the number of frames to copy frames.
        settle: Function that stores the mean and deviation of latents, [channels, any], in the VAE for the
            users of the network.
        normalize: Function that converts latents of the VAE to those that a denoiser takes.
        tiled: True if decoding may begin with any latent frame, False if only with the clip's first.
    """

    network: type[Any]
    channels: str
    whole: Callable[[], AbstractContextManager[None]]
    branch_ends: Callable[[nn.Module], list[nn.Module]]
    keep_frames: Callable[[nn.Module], None]
    settle: Callable[[Vae, Tensor], None]
    normalize: Callable[[Vae, Tensor], Tensor]
    tiled: bool


def form_of(vae: Vae) -> Form:
    """Return the form of a network."""
    return next(form for form in FORMS if isinstance(vae, form.network))


@torch.no_grad()
def move_latents(vae: Vae, factor: Tensor, offset: Tensor) -> None:
    """Make a VAE's latents ``factor * latents + offset``, by its two convolutions of one pixel.

    The convolutions are those directly before and after the latents. The VAE still decodes its own latents
    to the same clips, except for rounding.

    Args:
        vae: VAE that is changed.
        factor: Factor of each channel, above 0.
        offset: Offset of each channel.
    """
    into, out = vae.quant_conv, vae.post_quant_conv
    own = slice(len(factor))
    into.weight[own] *= factor.view(-1, 1, 1, 1, 1)
    into.bias[own] = into.bias[own] * factor + offset
    into.bias[len(factor) :] += 2 * factor.log()
    out.weight /= factor.view(1, -1, 1, 1, 1)
    out.bias -= out.weight[:, :, 0, 0, 0] @ offset


def _wan_branch_ends(vae: nn.Module) -> list[nn.Module]:
    blocks = [block.conv2 for block in vae.modules() if isinstance(block, WanResidualBlock)]
    return blocks + [block.proj for block in vae.modules() if isinstance(block, WanAttentionBlock)]


def _wan_keep_frames(vae: nn.Module) -> None:
    for module in vae.modules():
        if isinstance(module, WanResample) and hasattr(module, "time_conv"):
            weight = module.time_conv.weight
            same = torch.eye(weight.shape[1]).repeat(weight.shape[0] // weight.shape[1], 1)
            weight.zero_()[:, :, -1, 0, 0] = same


def _wan_settle(vae: Vae, columns: Tensor) -> None:
    mean, std = columns.mean(dim=1).tolist(), columns.std(dim=1).tolist()
    vae.register_to_config(latents_mean=mean, latents_std=std)


def _wan_normalize(vae: Vae, latents: Tensor) -> Tensor:
    mean, std = (
        torch.tensor(values).view(-1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    normalized: Tensor = (latents - mean) / std
    return normalized


@contextmanager
def _wan_whole() -> Iterator[None]:
    """Make the layers that change the number of frames process a whole clip, without caches."""
    own = WanResample.forward
    WanResample.forward = _resample
    try:
        yield
    finally:
        WanResample.forward = own


def _resample(
    layer: WanResample, hidden: Tensor, feat_cache: object = None, feat_idx: object = None
) -> Tensor:
    """Resample a whole clip as :meth:`WanResample.forward` does with caches; the first frame stays single."""
    first, later = hidden[:, :, :1], hidden[:, :, 1:]
    if layer.mode == "upsample3d" and later.shape[2]:
        doubled = layer.time_conv(later).unflatten(1, (2, hidden.shape[1]))
        hidden = torch.cat([first, doubled.permute(0, 2, 3, 1, 4, 5).flatten(2, 3)], dim=2)
    frames = layer.resample(hidden.transpose(1, 2).flatten(0, 1))
    hidden = frames.unflatten(0, (hidden.shape[0], hidden.shape[2])).transpose(1, 2)
    if layer.mode == "downsample3d" and hidden.shape[2] > 1:
        hidden = torch.cat([hidden[:, :, :1], layer.time_conv(hidden)], dim=2)
    return hidden


def _hunyuan_branch_ends(vae: nn.Module) -> list[nn.Module]:
    blocks: list[nn.Module] = [
        block.conv2.conv for block in vae.modules() if isinstance(block, HunyuanVideoResnetBlockCausal3D)
    ]
    return blocks + [block.to_out[0] for block in vae.modules() if isinstance(block, Attention)]


def _hunyuan_settle(vae: Vae, columns: Tensor) -> None:
    """Make each channel's mean 0 and deviation 1; the configuration has one scaling factor, then 1."""
    mean, std = columns.mean(dim=1), columns.std(dim=1)
    move_latents(vae, 1 / std, -mean / std)
    vae.register_to_config(scaling_factor=1.0)


def _hunyuan_normalize(vae: Vae, latents: Tensor) -> Tensor:
    normalized: Tensor = latents * float(vae.config.scaling_factor)
    return normalized


WAN = Form(
    network=AutoencoderKLWan,
    channels="z_dim",
    whole=_wan_whole,
    branch_ends=_wan_branch_ends,
    keep_frames=_wan_keep_frames,
    settle=_wan_settle,
    normalize=_wan_normalize,
    tiled=False,
)
# HunyuanVideo's layers need no caches, and upsample time by repeating frames, where Wan's layers learn it.
HUNYUAN_VIDEO = Form(
    network=AutoencoderKLHunyuanVideo,
    channels="latent_channels",
    whole=nullcontext,
    branch_ends=_hunyuan_branch_ends,
    keep_frames=lambda vae: None,
    settle=_hunyuan_settle,
    normalize=_hunyuan_normalize,
    tiled=True,
)
FORMS = (WAN, HUNYUAN_VIDEO)
