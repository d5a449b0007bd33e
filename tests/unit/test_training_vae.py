"""Training of a causal VAE: whole clips equal diffusers' frame by frame; the first weights pass them on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan

from slipway_training.causal_vae import Stage, WholeClips, as_tensor, train_vae
from slipway_training.fitting import Schedule
from slipway_training.recipe import Making
from slipway_training.shapes.clips import pictures, pieces
from slipway_training.shapes.scenes import subjects

SEEN = subjects(unseen=False)
CONFIG = {
    "base_dim": 4,
    "z_dim": 4,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}


@pytest.mark.parametrize("frames", [1, 5, 13])
def test_whole_clips_equal_frame_by_frame(frames: int) -> None:
    torch.manual_seed(0)
    network = WholeClips(AutoencoderKLWan(**CONFIG)).eval()
    clip = torch.rand(2, 3, frames, 16, 24) * 2 - 1
    with torch.no_grad():
        latents, log_variance = network.encode(clip)
        pixels = network.decode(latents)
        wanted = network.vae.encode(clip).latent_dist
        decoded = network.vae.decode(latents).sample
    torch.testing.assert_close(latents, wanted.mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(log_variance, wanted.logvar, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pixels.clamp(-1, 1), decoded, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def hardly_trained(tmp_path_factory: pytest.TempPathFactory) -> AutoencoderKLWan:
    """Return a VAE with the weights that training begins with, after a step that does next to nothing."""
    folder = tmp_path_factory.mktemp("vae")
    schedule = Schedule(steps=1, learning_rate=1e-6, ema=0.0)
    stages = (
        Stage("pictures", schedule, lambda random, step: pictures(random, SEEN)[:4]),
        Stage("clips", schedule, lambda random, step: pieces(random, 1, SEEN)[:2]),
    )
    return train_vae(CONFIG, stages, Making(folder, folder / "state", threads=1))


def test_training_begins_with_latents_that_tell_clips_apart_above_their_noise(
    hardly_trained: AutoencoderKLWan,
) -> None:
    clips = as_tensor(pictures(np.random.default_rng(9), SEEN))
    with torch.no_grad():
        latents = hardly_trained.encode(clips).latent_dist
        decoded = hardly_trained.decode(latents.mean).sample
    assert latents.mean.std(dim=0).mean() > 3 * latents.std.mean()
    assert decoded.std(dim=0).mean() > 0.1


def test_training_states_mean_and_spread_of_the_latents(hardly_trained: AutoencoderKLWan) -> None:
    clips = np.concatenate([pieces(np.random.default_rng(seed), 1, SEEN) for seed in range(8)])
    with torch.no_grad():
        found = hardly_trained.encode(as_tensor(clips)).latent_dist.mean.transpose(0, 1).flatten(1)
    torch.testing.assert_close(
        torch.tensor(hardly_trained.config.latents_mean), found.mean(dim=1), atol=0.1, rtol=0.1
    )
    torch.testing.assert_close(
        torch.tensor(hardly_trained.config.latents_std), found.std(dim=1), atol=0.1, rtol=0.2
    )
