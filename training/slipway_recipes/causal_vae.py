"""Training of a causal video VAE on rendered clips; `vae_forms` describes the supported VAEs.

Encoder and decoder process whole clips. diffusers processes them frame by frame, with a cache of earlier
frames for each convolution. Both give the same result, but whole clips need several times fewer and larger
operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from slipway_recipes.fitting import Loss, Schedule, fit
from slipway_recipes.flow_matching import ground_of, weights_of
from slipway_recipes.recipe import Making
from slipway_recipes.vae_forms import WAN, Form, Vae, form_of

DrawClips = Callable[[np.random.Generator, int], NDArray[np.uint8]]
"""Function from a generator and a step's number to its clips, [batch, 4k + 1 frames, height, width, 3]."""

# Weight of the KL divergence from unit noise (mean per latent value), relative to the mean colour error.
_KL_WEIGHT = 3e-4
# Bounds to which diffusers clamps the logarithm of the variance.
_LOG_VARIANCE = (-30.0, 20.0)
_FIRST_LOG_VARIANCE, _BLOCK_GAIN = -6.0, 0.1
# Largest deviation of the noise on latents that the decoder learns to tolerate.
_WORN = 0.4
_MEASURED_STEPS = 64
_FRAMES_PER_LATENT = 4


class WholeClips(nn.Module):
    """VAE that encodes and decodes whole clips."""

    def __init__(self, vae: Vae) -> None:
        super().__init__()
        self.vae, self.form = vae, form_of(vae)

    def forward(self, clips: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Encode clips and decode a sample of their latents.

        Args:
            clips: Clips, [batch, 3, 4k + 1 frames, height, width] in [-1, 1].
            first: First latent frame that is decoded.

        Returns:
            Clips of the same shape without the first ``4 * first`` frames, and the mean and the logarithm of
            the variance of the latents.
        """
        mean, log_variance = self.encode(clips)
        latents = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decode(latents[:, :, first:]), mean, log_variance

    def encode(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log variance, each [batch, channels, k + 1, height / 8, width / 8]."""
        with self.form.whole():
            moments = self.vae.quant_conv(self.vae.encoder(clips)).float()
        mean, log_variance = moments.chunk(2, dim=1)
        return mean, log_variance.clamp(*_LOG_VARIANCE)

    def decode(self, latents: Tensor) -> Tensor:
        """Return clips [batch, 3, 4k + 1 frames, height, width], about -1 to 1, not clamped."""
        with self.form.whole():
            clips: Tensor = self.vae.decoder(self.vae.post_quant_conv(latents))
        return clips.float()


@dataclass(frozen=True)
class Stage:
    """Stage of a VAE's training with its own optimizer.

    Some weights get gradients only from clips. The optimizer of the stage on pictures would move them many
    times too far at their first gradients.

    Args:
        name: Name of the stage within the recipe.
        schedule: Hyperparameters of the optimizer.
        draw: Function that draws the clips of a step.
        emphasis: Extra loss weight where a shape differs most from the ground; see
            :func:`~slipway_recipes.flow_matching.weights_of`.
    """

    name: str
    schedule: Schedule
    draw: DrawClips
    emphasis: float = 0.0


def train_vae(
    config: Mapping[str, Any],
    stages: Sequence[Stage],
    making: Making,
    form: Form = WAN,
    initial: Vae | None = None,
) -> Vae:
    """Train a VAE, and store the statistics of its latents in it.

    Args:
        config: Configuration of the form's network.
        stages: Stages in their order; training on pictures before clips saves most of the time.
        making: Seed, threads and state folder.
        form: Kind of VAE.
        initial: VAE of this configuration with the initial weights; without it they are random.

    Returns:
        The VAE with averaged weights, float32, in eval mode.
    """
    torch.manual_seed(making.seed)
    vae = form.network(**config)
    if initial is None:
        _begin(vae, form)
    else:
        vae.load_state_dict(initial.state_dict())
    network = _laid_out(vae)
    for stage in stages:
        trained = fit(network, _loss(stage, making, form.tiled), stage.schedule, making, stage.name)
        assert isinstance(trained, WholeClips)
        network = trained
    # The statistics come from steps after the last one, whose clips are like those of the last steps.
    last = stages[-1]
    steps = range(last.schedule.steps, last.schedule.steps + _MEASURED_STEPS)
    clips = (last.draw(np.random.default_rng([making.seed, step]), step) for step in steps)
    columns = torch.cat([latents_of(network, clip).transpose(0, 1).flatten(1) for clip in clips], dim=1)
    form.settle(network.vae, columns)
    return _as_files_have(network.vae)


def train_decoder(vae: Vae, stage: Stage, making: Making) -> Vae:
    """Train a VAE's decoder further on noisy latents, with its encoder frozen.

    Generated latents always differ a little from encoded ones, and outlines suffer first.

    Args:
        vae: VAE with latents of deviation 1; it is changed.
        stage: Stage of the training.
        making: Seed, threads and state folder.
    """
    network = _laid_out(vae)
    for part in (vae.encoder, vae.quant_conv):
        part.requires_grad_(False)
    trained = fit(network, _decoder_loss(stage, making), stage.schedule, making, stage.name)
    assert isinstance(trained, WholeClips)
    return _as_files_have(trained.vae)


def _decoder_loss(stage: Stage, making: Making) -> Loss:
    def loss(network: nn.Module, step: int) -> Tensor:
        assert isinstance(network, WholeClips)
        random = np.random.default_rng([making.seed, step])
        clips = as_tensor(stage.draw(random, step)).to(next(network.parameters()).device)
        with torch.autocast(clips.device.type, torch.bfloat16):
            with torch.no_grad():
                latents, _ = network.encode(clips)
            worn = _WORN * torch.rand(len(latents), 1, 1, 1, 1, device=latents.device)
            first = _first_decoded(random, clips)
            decoded = network.decode((latents + worn * torch.randn_like(latents))[:, :, first:])
        return _error(decoded, clips[:, :, _FRAMES_PER_LATENT * first :], stage)

    return loss


def _loss(stage: Stage, making: Making, tiled: bool) -> Loss:
    def loss(network: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng([making.seed, step])
        clips = as_tensor(stage.draw(random, step)).to(next(network.parameters()).device)
        first = _first_decoded(random, clips) if tiled else 0
        with torch.autocast(clips.device.type, torch.bfloat16):
            decoded, mean, log_variance = network(clips, first)
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).mean() / 2
        error: Tensor = _error(decoded, clips[:, :, _FRAMES_PER_LATENT * first :], stage) + _KL_WEIGHT * kl
        return error

    return loss


def _first_decoded(random: np.random.Generator, clips: Tensor) -> int:
    """Draw the first latent frame of a decoding tile."""
    return int(random.integers((clips.shape[2] - 1) // _FRAMES_PER_LATENT + 1))


def _error(decoded: Tensor, wanted: Tensor, stage: Stage) -> Tensor:
    off = decoded - wanted
    each = off.abs() + off.square()
    if stage.emphasis:
        each = each * weights_of(wanted, ground_of(wanted), stage.emphasis)
    error: Tensor = each.mean()
    return error


@torch.no_grad()
def latents_of(network: WholeClips, clips: NDArray[np.uint8]) -> Tensor:
    """Return the means of clips' latents, unnormalized, in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        means, _ = network.encode(as_tensor(clips))
    return means


def as_tensor(clips: NDArray[np.uint8]) -> Tensor:
    """Return clips [batch, frames, height, width, 3] as [batch, 3, frames, height, width] in [-1, 1]."""
    # The channels stay last in memory, the fastest layout for convolutions.
    return torch.from_numpy(clips).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def psnr_db(vae: Vae, clips: NDArray[np.uint8]) -> float:
    """Return the PSNR in dB of clips [batch, frames, height, width, 3] encoded and decoded by diffusers."""
    with torch.no_grad():
        pixels = as_tensor(clips)
        decoded = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
    error = functional.mse_loss(decoded.clamp(-1, 1), pixels)
    return float(10 * torch.log10(4 / error))


@torch.no_grad()
def _begin(vae: Vae, form: Form) -> None:
    """Set initial weights that pass a clip through the VAE.

    With torch's defaults, biases and noise drown the clip for many steps. Here every convolution keeps the
    variance and reads one frame, residual blocks add little, a layer that changes the number of frames copies
    them, and the latents' noise is small.
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
    for layer in form.branch_ends(vae):
        assert isinstance(layer.weight, Tensor)
        layer.weight.mul_(_BLOCK_GAIN)
    form.keep_frames(vae)
    channels = vae.config[form.channels]
    vae.quant_conv.weight[channels:].mul_(_BLOCK_GAIN)
    vae.quant_conv.bias[channels:].fill_(_FIRST_LOG_VARIANCE)


def _laid_out(vae: Vae) -> WholeClips:
    """Convert weights to the memory layout with the fastest convolutions."""
    for module in vae.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            layout = torch.channels_last_3d if module.weight.ndim == 5 else torch.channels_last
            module.to(memory_format=layout)  # type: ignore[call-overload]
    return WholeClips(vae)


def _as_files_have(vae: Vae) -> Vae:
    vae.to(memory_format=torch.contiguous_format)
    return vae
