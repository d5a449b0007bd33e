"""Encoders of a Wan VAE for the first picture of a video.

:class:`FrameEncoder` encodes the picture alone. :class:`PictureEncoder` encodes a video of which only the
picture is known. That video consists of the picture and then frames of zeros. Only the first encoded frames
depend on the picture, since every causal convolution reaches two frames back. Each layer receives the frames
that differ, the last of which represents all later ones, and returns the frames that differ after it, in the
same form. So no frame is encoded that equals the previous one, the latents are valid for a video of any
length, and the graph has no loop.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify
from torch import Tensor, nn


class _Encoder(nn.Module):
    """Encoder of a Wan VAE, with the scale of latents of unit variance."""

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, vae: AutoencoderKLWan) -> None:
        super().__init__()
        self.encoder, self.quant_conv = vae.encoder, vae.quant_conv
        self.patch_size = vae.config.patch_size or 1
        shape = (1, vae.config.z_dim, 1, 1, 1)
        self.register_buffer("latents_mean", torch.tensor(vae.config.latents_mean).view(shape))
        self.register_buffer("latents_std", torch.tensor(vae.config.latents_std).view(shape))

    def scaled(self, hidden: Tensor) -> Tensor:
        """Return the means of latents of unit variance from the encoder's output."""
        mean = self.quant_conv(hidden).chunk(2, dim=1)[0]
        latents: Tensor = (mean - self.latents_mean) / self.latents_std
        return latents


class FrameEncoder(_Encoder):
    """Encoder of a Wan VAE for a single picture."""

    def forward(self, image: Tensor) -> Tensor:
        """Encode a picture.

        Args:
            image: Picture, [1, 3, height, width] in [-1, 1], float32.

        Returns:
            Means of the latents, [1, channels, 1, latent height, latent width], unit variance.
        """
        return self.scaled(self.encoder(patchify(image[:, :, None], self.patch_size)))


class PictureEncoder(_Encoder):
    """Encoder of a Wan VAE for a picture followed by frames of zeros."""

    def forward(self, image: Tensor) -> Tensor:
        """Encode a picture.

        Args:
            image: Picture, [1, 3, height, width] in [-1, 1], float32.

        Returns:
            Means of the latents, [1, channels, latent_frames, height / 8, width / 8], unit variance. The last
            latent frame repeats for every later one; a shorter video uses only the first latent frames.
        """
        video = torch.stack([image, torch.zeros_like(image)], dim=2)
        encoder: Any = self.encoder
        hidden = _convolve(encoder.conv_in, video)
        for layer in encoder.down_blocks:
            hidden = _downsample(layer, hidden) if hasattr(layer, "resample") else _residual(layer, hidden)
        middle = encoder.mid_block
        hidden = _residual(middle.resnets[0], hidden)
        for attention, block in zip(middle.attentions, middle.resnets[1:], strict=True):
            hidden = _residual(block, attention(hidden))
        return self.scaled(_convolve(encoder.conv_out, encoder.nonlinearity(encoder.norm_out(hidden))))


def picture_latents(config: dict[str, object]) -> int:
    """Return the number of latent frames of :class:`PictureEncoder`: 30 for the VAE of Wan2.1.

    Args:
        config: Configuration of :class:`AutoencoderKLWan`.
    """
    with torch.device("meta"), torch.no_grad():
        vae = AutoencoderKLWan.from_config(config)
        side = vae.config.scale_factor_spatial
        return int(PictureEncoder(vae)(torch.zeros(1, 3, side, side)).shape[2])


def _held(frames: Tensor, count: int) -> Tensor:
    """Extend frames to `count` by repeating the last one."""
    after = frames[:, :, -1:].expand(-1, -1, count - frames.shape[2], -1, -1)
    return torch.cat([frames, after], dim=2)


def _convolve(convolution: nn.Conv3d, frames: Tensor) -> Tensor:
    """Convolve frames, extended by copies of the last one until the output is constant in time."""
    result: Tensor = convolution(_held(frames, frames.shape[2] + convolution.kernel_size[0] - 1))
    return result


def _residual(block: Any, frames: Tensor) -> Tensor:
    hidden = _convolve(block.conv1, block.nonlinearity(block.norm1(frames)))
    hidden = _convolve(block.conv2, block.nonlinearity(block.norm2(hidden)))
    return hidden + _held(block.conv_shortcut(frames), hidden.shape[2])


def _downsample(layer: Any, frames: Tensor) -> Tensor:
    """Halve height and width, and the number of frames after the first if the layer downsamples time.

    For output frame j, the convolution in time uses frames 2j - 2 to 2j; the first frame bypasses it.
    """
    hidden: Tensor = layer(frames)  # without a cache the layer does not downsample time
    if layer.mode != "downsample3d":
        return hidden
    first_alike = frames.shape[2] // 2 + 1
    return torch.cat([hidden[:, :, :1], layer.time_conv(_held(hidden, 2 * first_alike + 1))], dim=2)
