"""VAE of HunyuanVideo as graphs: one encodes pictures, the other decodes a tile of latent frames.

diffusers decodes a video in tiles of 5 latent frames, of which 2 overlap with the previous tile, and blends
the frames that two tiles share; the graph decodes one tile of up to 8 frames. Latents are scaled as in the
transformer: the checkpoint's scaling factor is inside the graphs.

Two parts of diffusers' decoder depend on the number of frames and are rewritten here with the same results:
frames are repeated by an index instead of a branch for videos of one frame, and attention ignores later
frames by extra channels of queries and keys instead of a mask of all pairs of tokens
(:mod:`slipway_export.networks.attention_bias`). Group normalization uses the distances from the mean, which
ONNX's operator does not guarantee.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLHunyuanVideo
from torch import Tensor, nn
from torch.nn import functional

from slipway_export.networks.attention_bias import CHANNELS, without_later

LARGEST_TILE = CHANNELS
"""Most latent frames in a tile; the extra channels distinguish no more."""


class PictureEncoder(nn.Module):
    """Encoder for pictures, which are videos of one frame."""

    def __init__(self, vae: AutoencoderKLHunyuanVideo) -> None:
        super().__init__()
        _center_groups(vae.encoder)
        self.encoder, self.quant_conv = vae.encoder, vae.quant_conv
        self.scaling_factor: float = vae.config.scaling_factor

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Encode pictures.

        Args:
            image: Pictures, [batch, 3, 1, height, width] in [-1, 1], float32.

        Returns:
            Mode and standard deviation of the scaled latents, each [batch, channels, 1, height / 8,
            width / 8], float32. diffusers' pipeline uses a sample, which is mode + deviation * noise.
        """
        encoder: Any = self.encoder
        hidden = encoder.conv_in(image.to(self.quant_conv.weight.dtype))
        for block in encoder.down_blocks:
            hidden = block(hidden)
        hidden = _middle(encoder.mid_block, hidden)
        moments = self.quant_conv(encoder.conv_out(encoder.conv_act(encoder.conv_norm_out(hidden))))
        mean, log_variance = moments.float().chunk(2, dim=1)
        # The bounds are those of diffusers' DiagonalGaussianDistribution.
        deviation = torch.exp(0.5 * log_variance.clamp(-30.0, 20.0))
        return mean * self.scaling_factor, deviation * self.scaling_factor


class TileDecoder(nn.Module):
    """Decoder for a tile of latent frames."""

    def __init__(self, vae: AutoencoderKLHunyuanVideo) -> None:
        super().__init__()
        _center_groups(vae.decoder)
        self.decoder, self.post_quant_conv = vae.decoder, vae.post_quant_conv
        self.scaling_factor: float = vae.config.scaling_factor

    def forward(self, latents: Tensor) -> Tensor:
        """Decode a tile of latent frames.

        Args:
            latents: Latents of at most `LARGEST_TILE` frames, float32,
                [batch, channels, frames, height / 8, width / 8].

        Returns:
            Pixels, [batch, 3, 4 * frames - 3, height, width], float32. They are about [-1, 1]; they are not
            clamped, since tiles are blended first.
        """
        decoder: Any = self.decoder
        dtype = self.post_quant_conv.weight.dtype
        hidden = decoder.conv_in(self.post_quant_conv((latents / self.scaling_factor).to(dtype)))
        hidden = _middle(decoder.mid_block, hidden)
        for block in decoder.up_blocks:
            for resnet in block.resnets:
                hidden = resnet(hidden)
            for upsampler in block.upsamplers or ():
                hidden = upsampler.conv(_repeated(hidden, upsampler.upsample_factor))
        pixels: Tensor = decoder.conv_out(decoder.conv_act(decoder.conv_norm_out(hidden)))
        return pixels.float()


class _CenteredGroups(nn.Module):
    """Group normalization that computes the variance as the mean of squared distances from the mean.

    ONNX computes it as the mean of squares minus the square of the mean. If a group hardly varies, float32
    rounds that difference to 0 or below: a picture of one colour became nan.
    """

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.groups, self.eps = norm.num_groups, norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalize [batch, channels, ...]; same shape and dtype."""
        grouped = hidden.float().reshape(hidden.shape[0], self.groups, -1)
        distance = grouped - grouped.mean(dim=2, keepdim=True)
        variance = distance.square().mean(dim=2, keepdim=True)
        normed = (distance * torch.rsqrt(variance + self.eps)).to(hidden.dtype).view(hidden.shape)
        shape = (1, -1, *[1] * (hidden.ndim - 2))
        scaled: Tensor = normed * self.weight.view(shape) + self.bias.view(shape)
        return scaled


def _center_groups(network: nn.Module) -> None:
    """Replace every group normalization by a :class:`_CenteredGroups` with its weights."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.GroupNorm):
                setattr(parent, name, _CenteredGroups(child))


def _repeated(hidden: Tensor, factor: tuple[int, ...]) -> Tensor:
    """Repeat values by the factors of time, height and width; the first frame is not repeated in time."""
    if factor[0] != 1:
        count = factor[0] * (hidden.shape[2] - 1) + 1
        source = (torch.arange(count, device=hidden.device) + factor[0] - 1) // factor[0]
        hidden = hidden.index_select(2, source)
    channels, frames = hidden.shape[1:3]
    plane: Any = functional.interpolate(hidden.flatten(1, 2), scale_factor=factor[1:], mode="nearest")
    repeated: Tensor = plane.unflatten(1, (channels, frames))
    return repeated


def _middle(middle: Any, hidden: Tensor) -> Tensor:
    hidden = middle.resnets[0](hidden)
    for attention, resnet in zip(middle.attentions, middle.resnets[1:], strict=True):
        hidden = resnet(hidden if attention is None else _attended(attention, hidden))
    return hidden


def _attended(attention: Any, hidden: Tensor) -> Tensor:
    """Attend from each place to all places of its frame and of earlier frames."""
    _, _, frames, height, width = hidden.shape
    tokens = hidden.flatten(2)
    normed = attention.group_norm(tokens).transpose(1, 2)
    query, key, value = (
        layer(normed).unflatten(2, (attention.heads, -1))
        for layer in (attention.to_q, attention.to_k, attention.to_v)
    )
    scale = query.shape[-1] ** -0.5
    frame = torch.arange(frames, device=hidden.device)[:, None].expand(-1, height * width).flatten()
    query, key = without_later(query, key, frame)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    out = functional.scaled_dot_product_attention(query, key, value, scale=scale)
    out = attention.to_out[0](out.transpose(1, 2).flatten(2)).transpose(1, 2)
    seen: Tensor = ((out + tokens) / attention.rescale_output_factor).unflatten(2, (frames, height, width))
    return seen
