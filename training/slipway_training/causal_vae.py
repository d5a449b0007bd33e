"""Training of a causal video VAE, on clips that a program draws; `vae_forms` says which VAEs there are.

Clips go through encoder and decoder whole. Where diffusers goes frame by frame, with what each convolution
keeps of the frames before, both give the same, and whole clips are several times fewer and larger operations.
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

from slipway_training.fitting import Loss, Schedule, fit
from slipway_training.flow_matching import ground_of, weights_of
from slipway_training.recipe import Making
from slipway_training.vae_forms import WAN, Form, Vae, form_of

DrawClips = Callable[[np.random.Generator, int], NDArray[np.uint8]]
"""From a generator and a step's number to the clips of a step, [batch, 4k + 1 frames, height, width, 3]."""

# Of the latents' distance to unit noise, in the mean of a latent's place, against the mean error of a colour.
_KL_WEIGHT = 3e-4
# As diffusers keeps it: further off a variance counts as this one.
_LOG_VARIANCE = (-30.0, 20.0)
_FIRST_LOG_VARIANCE, _BLOCK_GAIN = -6.0, 0.1
# Noise on the latents that a decoder learns to forgive, at most.
_WORN = 0.4
_MEASURED_STEPS = 64
_FRAMES_PER_LATENT = 4


class WholeClips(nn.Module):
    """A VAE that encodes and decodes whole clips."""

    def __init__(self, vae: Vae) -> None:
        super().__init__()
        self.vae, self.form = vae, form_of(vae)

    def forward(self, clips: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Encode clips and decode a sample of their latents.

        Args:
            clips: [batch, 3, 4k + 1 frames, height, width] in [-1, 1].
            first: latent frame from which on they are decoded.

        Returns:
            Clips of the same shape, less the first ``4 * first`` frames, and mean and logarithm of the
            variance of the latents.
        """
        mean, log_variance = self.encode(clips)
        latents = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decode(latents[:, :, first:]), mean, log_variance

    def encode(self, clips: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and logarithm of the variance, each [batch, channels, k + 1, height / 8, width / 8]."""
        with self.form.whole():
            moments = self.vae.quant_conv(self.vae.encoder(clips)).float()
        mean, log_variance = moments.chunk(2, dim=1)
        return mean, log_variance.clamp(*_LOG_VARIANCE)

    def decode(self, latents: Tensor) -> Tensor:
        """Return clips [batch, 3, 4k + 1 frames, height, width], about -1 to 1, not cut off."""
        with self.form.whole():
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
        emphasis: by how much more than the ground a shape counts, where it differs most.
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
    """Train a VAE, and tell in it the spread of its latents.

    Args:
        config: of the form's network.
        stages: one after the other; pictures before clips save most of the time.
        making: seed, threads and state.
        form: which VAE it is.
        initial: a VAE of this configuration whose weights it begins with; without it they are drawn.

    Returns:
        The VAE with mean weights, float32, in eval mode.
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
    # Of steps beyond the last, which are like the last ones.
    last = stages[-1]
    steps = range(last.schedule.steps, last.schedule.steps + _MEASURED_STEPS)
    clips = (last.draw(np.random.default_rng([making.seed, step]), step) for step in steps)
    columns = torch.cat([latents_of(network, clip).transpose(0, 1).flatten(1) for clip in clips], dim=1)
    form.settle(network.vae, columns)
    return _as_files_have(network.vae)


def train_decoder(vae: Vae, stage: Stage, making: Making) -> Vae:
    """Train a VAE's decoder further, on latents that are not quite right; its encoder and its latents stay.

    What a network makes of noise is never quite what the encoder gives, and an outline suffers first.

    Args:
        vae: whose latents are of deviation 1; it is changed.
        stage: the training.
        making: seed, threads and state.
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
    """Draw the latent frame with which a tile of decoding begins."""
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
    """Return the means of clips' latents, as the VAE gives them, in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        means, _ = network.encode(as_tensor(clips))
    return means


def as_tensor(clips: NDArray[np.uint8]) -> Tensor:
    """Return clips [batch, frames, height, width, 3] as [batch, 3, frames, height, width] in [-1, 1]."""
    # The channels stay last in memory, where the convolutions are fastest.
    return torch.from_numpy(clips).permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def psnr_db(vae: Vae, clips: NDArray[np.uint8]) -> float:
    """Return how near clips [batch, frames, height, width, 3] are to themselves after diffusers' own loop."""
    with torch.no_grad():
        pixels = as_tensor(clips)
        decoded = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
    error = functional.mse_loss(decoded.clamp(-1, 1), pixels)
    return float(10 * torch.log10(4 / error))


@torch.no_grad()
def _begin(vae: Vae, form: Form) -> None:
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
    for layer in form.branch_ends(vae):
        assert isinstance(layer.weight, Tensor)
        layer.weight.mul_(_BLOCK_GAIN)
    form.keep_frames(vae)
    channels = vae.config[form.channels]
    vae.quant_conv.weight[channels:].mul_(_BLOCK_GAIN)
    vae.quant_conv.bias[channels:].fill_(_FIRST_LOG_VARIANCE)


def _laid_out(vae: Vae) -> WholeClips:
    """Bring weights to the layout in memory for which convolutions are fastest."""
    for module in vae.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            layout = torch.channels_last_3d if module.weight.ndim == 5 else torch.channels_last
            module.to(memory_format=layout)  # type: ignore[call-overload]
    return WholeClips(vae)


def _as_files_have(vae: Vae) -> Vae:
    vae.to(memory_format=torch.contiguous_format)
    return vae
