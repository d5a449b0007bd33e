"""Training of a causal video VAE in Wan's form, on clips that a program draws.

Clips go through encoder and decoder whole. diffusers goes frame by frame, with what each convolution keeps of
the frames before; both give the same, and whole clips are several times fewer and larger operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock, WanResample, WanResidualBlock
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipway_training.fitting import Loss, Schedule, fit
from slipway_training.recipe import Making

DrawClips = Callable[[np.random.Generator, int], NDArray[np.uint8]]
"""From a generator and a step's number to the clips of a step, [batch, 4k + 1 frames, height, width, 3]."""

# Of the latents' distance to unit noise, in the mean of a latent's place, against the mean error of a colour.
_KL_WEIGHT = 3e-4
# As diffusers keeps it: further off a variance counts as this one.
_LOG_VARIANCE = (-30.0, 20.0)
_FIRST_LOG_VARIANCE, _BLOCK_GAIN = -6.0, 0.1
_MEASURED_STEPS = 64


class WholeClips(nn.Module):
    """A VAE that encodes and decodes whole clips."""

    def __init__(self, vae: AutoencoderKLWan) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, clips: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode clips and decode a sample of their latents.

        Args:
            clips: [batch, 3, 4k + 1 frames, height, width] in [-1, 1].

        Returns:
            Clips of the same shape, and mean and logarithm of the variance of the latents.
        """
        mean, log_variance = self.encode(clips)
        latents = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decode(latents), mean, log_variance

    def encode(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and logarithm of the variance, each [batch, channels, k + 1, height / 8, width / 8]."""
        with _whole():
            moments = self.vae.quant_conv(self.vae.encoder(clips)).float()
        mean, log_variance = moments.chunk(2, dim=1)
        return mean, log_variance.clamp(*_LOG_VARIANCE)

    def decode(self, latents: Tensor) -> Tensor:
        """Return clips [batch, 3, 4k + 1 frames, height, width], about -1 to 1, not cut off."""
        with _whole():
            clips: Tensor = self.vae.decoder(self.vae.post_quant_conv(latents))
        return clips.float()


@dataclass(frozen=True)
class Stage:
    """A part of a VAE's training, with an optimizer of its own.

    Weights that only clips reach must not meet the optimizer of pictures: at their first gradients it would
    take them many times too far.

    Args:
        name: among the recipe's networks.
        schedule: of the optimizer.
        draw: gives the clips of a step.
    """

    name: str
    schedule: Schedule
    draw: DrawClips


def train_vae(config: Mapping[str, Any], stages: Sequence[Stage], making: Making) -> AutoencoderKLWan:
    """Train a VAE, with the mean and the spread of its latents in its configuration.

    Args:
        config: of :class:`AutoencoderKLWan`.
        stages: one after the other; pictures before clips save most of the time.
        making: seed, threads and state.

    Returns:
        The VAE with mean weights, float32, in eval mode.
    """
    torch.manual_seed(making.seed)
    network = WholeClips(AutoencoderKLWan(**config))
    _begin(network.vae)
    for stage in stages:
        trained = fit(network, _loss(stage, making), stage.schedule, making, stage.name)
        assert isinstance(trained, WholeClips)
        network = trained
    # Of steps beyond the last, which are like the last ones.
    last = stages[-1]
    steps = range(last.schedule.steps, last.schedule.steps + _MEASURED_STEPS)
    clips = (last.draw(np.random.default_rng([making.seed, step]), step) for step in steps)
    columns = torch.cat([latents_of(network, clip).transpose(0, 1).flatten(1) for clip in clips], dim=1)
    network.vae.register_to_config(
        latents_mean=columns.mean(dim=1).tolist(), latents_std=columns.std(dim=1).tolist()
    )
    # As files have them.
    return network.vae.to(memory_format=torch.contiguous_format)


def _loss(stage: Stage, making: Making) -> Loss:
    def loss(network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        clips = as_tensor(stage.draw(random, step)).to(next(network.parameters()).device)
        with torch.autocast(clips.device.type, torch.bfloat16):
            decoded, mean, log_variance = network(clips)
        off = decoded - clips
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).mean() / 2
        error: Tensor = off.abs().mean() + off.square().mean() + _KL_WEIGHT * kl
        return error

    return loss


@torch.no_grad()
def latents_of(network: WholeClips, clips: NDArray[np.uint8]) -> Tensor:
    """Return the means of clips' latents, as the VAE gives them, in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        means, _ = network.encode(as_tensor(clips))
    return means


def as_tensor(clips: NDArray[np.uint8]) -> Tensor:
    """Return clips [batch, frames, height, width, 3] as [batch, 3, frames, height, width] in [-1, 1]."""
    # The channels stay last in memory, where the convolutions are fastest.
    return torch.from_numpy(clips).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def psnr_db(vae: AutoencoderKLWan, clips: NDArray[np.uint8]) -> float:
    """Return how near clips [batch, frames, height, width, 3] are to themselves after diffusers' own loop."""
    with torch.no_grad():
        pixels = as_tensor(clips)
        decoded = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
    error = functional.mse_loss(decoded.clamp(-1, 1), pixels)
    return float(10 * torch.log10(4 / error))


@torch.no_grad()
def _begin(vae: AutoencoderKLWan) -> None:
    """Set initial weights that pass a clip on; with torch's own, biases and noise drown it for long.

    Every convolution keeps the variance and sees one frame, blocks add little, a frame stands for those that
    it becomes, and the latents' noise is small.
    """
    for module in vae.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            weight = module.weight
            taps = torch.zeros_like(weight)
            now = taps[:, :, -1] if weight.ndim == 5 else taps
            nn.init.normal_(now, std=(weight.shape[1] * weight.shape[-1] * weight.shape[-2]) ** -0.5)
            weight.copy_(taps)
            assert module.bias is not None
            nn.init.zeros_(module.bias)
            # The layout in memory for which convolutions are fastest.
            layout = torch.channels_last_3d if weight.ndim == 5 else torch.channels_last
            module.to(memory_format=layout)  # type: ignore[call-overload]
    for module in vae.modules():
        if isinstance(module, WanResidualBlock):
            module.conv2.weight.mul_(_BLOCK_GAIN)
        elif isinstance(module, WanAttentionBlock):
            module.proj.weight.mul_(_BLOCK_GAIN)
        elif isinstance(module, WanResample) and hasattr(module, "time_conv"):
            weight = module.time_conv.weight
            same = torch.eye(weight.shape[1]).repeat(weight.shape[0] // weight.shape[1], 1)
            weight.zero_()[:, :, -1, 0, 0] = same
    channels = vae.config.z_dim
    vae.quant_conv.weight[channels:].mul_(_BLOCK_GAIN)
    vae.quant_conv.bias[channels:].fill_(_FIRST_LOG_VARIANCE)


@contextmanager
def _whole() -> Iterator[None]:
    """Let the layers that change the number of frames take a whole clip, without caches."""
    own = WanResample.forward
    WanResample.forward = _resample
    try:
        yield
    finally:
        WanResample.forward = own


def _resample(
    layer: WanResample, hidden: Tensor, feat_cache: object = None, feat_idx: object = None
) -> Tensor:
    """Do what :meth:`WanResample.forward` does with caches: the first frame stands for itself."""
    first, later = hidden[:, :, :1], hidden[:, :, 1:]
    if layer.mode == "upsample3d" and later.shape[2]:
        doubled = layer.time_conv(later).unflatten(1, (2, hidden.shape[1]))
        hidden = torch.cat([first, doubled.permute(0, 2, 3, 1, 4, 5).flatten(2, 3)], dim=2)
    frames = layer.resample(hidden.transpose(1, 2).flatten(0, 1))
    hidden = frames.unflatten(0, (hidden.shape[0], hidden.shape[2])).transpose(1, 2)
    if layer.mode == "downsample3d" and hidden.shape[2] > 1:
        hidden = torch.cat([hidden[:, :, :1], layer.time_conv(hidden)], dim=2)
    return hidden
