"""Encoders of a Wan VAE for the first picture of a video, and for the first and the last.

:class:`FrameEncoder` encodes the picture alone. :class:`PictureEncoder` encodes a video of which only the
picture is known. That video consists of the picture and then frames of zeros. Only the first encoded frames
depend on the picture, since every causal convolution reaches two frames back. Each layer receives the frames
that differ, the last of which represents all later ones, and returns the frames that differ after it, in the
same form. So no frame is encoded that equals the previous one, the latents are valid for a video of any
length, and the graph has no loop. :class:`PicturesEncoder` also knows the last picture of the video. That
picture changes only the last frame of each layer, since convolutions are causal, so each layer computes one
more frame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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


class _Video(NamedTuple):
    """Frames of a layer.

    Attributes:
        frames: Frames that differ, [batch, channels, frames, height, width]; the last one stands for all
            later ones.
        last: Last frame if it is another one, [batch, channels, 1, height, width]; None if it is not.
        length: Number of frames with the last one, [1], int64; None without a last one.
    """

    frames: Tensor
    last: Tensor | None = None
    length: Tensor | None = None

    def each(self, layer: Callable[[Tensor], Tensor]) -> _Video:
        """Apply a layer to every frame."""
        return self._replace(frames=layer(self.frames), last=None if self.last is None else layer(self.last))

    def before_last(self, number: int) -> Tensor:
        """Return the frames before the last one, zeros before the first."""
        assert self.length is not None
        places = self.length - 1 - torch.arange(number, 0, -1, device=self.frames.device)
        found = self.frames.index_select(2, places.clamp(0, self.frames.shape[2] - 1))
        return found * (places >= 0).to(found.dtype).view(1, 1, -1, 1, 1)


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
        return self.encoded(_Video(torch.stack([image, torch.zeros_like(image)], dim=2))).frames

    def encoded(self, video: _Video) -> _Video:
        """Return the latents of a video."""
        encoder: Any = self.encoder
        hidden = _convolve(encoder.conv_in, video)
        for layer in encoder.down_blocks:
            hidden = _downsample(layer, hidden) if hasattr(layer, "resample") else _residual(layer, hidden)
        middle = encoder.mid_block
        hidden = _residual(middle.resnets[0], hidden)
        for attention, block in zip(middle.attentions, middle.resnets[1:], strict=True):
            hidden = _residual(block, hidden.each(attention))
        activated = hidden.each(lambda frames: encoder.nonlinearity(encoder.norm_out(frames)))
        return _convolve(encoder.conv_out, activated).each(self.scaled)


class PicturesEncoder(PictureEncoder):
    """Encoder of a Wan VAE for a picture, frames of zeros, and a last picture."""

    def forward(  # type: ignore[override]
        self, image: Tensor, last_image: Tensor, latent_frames: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Encode two pictures.

        Args:
            image: First picture, [1, 3, height, width] in [-1, 1], float32.
            last_image: Last picture, same shape and range.
            latent_frames: Number of latent frames of the video, [1], int64, at least 2.

        Returns:
            Latents without the last picture as of :class:`PictureEncoder`, and those of the last latent
            frame, [1, channels, 1, height / 8, width / 8].
        """
        frames = torch.stack([image, torch.zeros_like(image)], dim=2)
        # Two layers halve the number of frames; the first frame is a latent frame of its own.
        found = self.encoded(_Video(frames, last_image[:, :, None], 4 * (latent_frames - 1) + 1))
        assert found.last is not None
        return found.frames, found.last


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


def _convolve(convolution: nn.Conv3d, video: _Video) -> _Video:
    """Convolve frames, extended by copies of the last one until the output is constant in time."""
    before = convolution.kernel_size[0] - 1
    frames = convolution(_held(video.frames, video.frames.shape[2] + before))
    if video.last is None:
        return video._replace(frames=frames)
    return video._replace(frames=frames, last=convolution(video.last, video.before_last(before)))


def _residual(block: Any, video: _Video) -> _Video:
    hidden = _convolve(block.conv1, video.each(lambda frames: block.nonlinearity(block.norm1(frames))))
    hidden = _convolve(block.conv2, hidden.each(lambda frames: block.nonlinearity(block.norm2(frames))))
    short = video.each(block.conv_shortcut)
    frames = hidden.frames + _held(short.frames, hidden.frames.shape[2])
    if hidden.last is None or short.last is None:
        return hidden._replace(frames=frames)
    return hidden._replace(frames=frames, last=hidden.last + short.last)


def _downsample(layer: Any, video: _Video) -> _Video:
    """Halve height and width, and the number of frames after the first if the layer downsamples time.

    For output frame j, the convolution in time uses frames 2j - 2 to 2j; the first frame bypasses it.
    """
    hidden = video.each(layer)  # without a cache the layer does not downsample time
    if layer.mode != "downsample3d":
        return hidden
    first_alike = video.frames.shape[2] // 2 + 1
    halved = layer.time_conv(_held(hidden.frames, 2 * first_alike + 1))
    frames = torch.cat([hidden.frames[:, :, :1], halved], dim=2)
    if hidden.last is None or hidden.length is None:
        return hidden._replace(frames=frames)
    last = layer.time_conv(torch.cat([hidden.before_last(2), hidden.last], dim=2))
    return _Video(frames, last, torch.div(hidden.length + 1, 2, rounding_mode="floor"))
