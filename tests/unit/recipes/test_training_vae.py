"""Training of causal VAEs: whole clips equal diffusers' own way; the first weights pass them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipway_loadtests.pictures.scenes import subjects
from slipway_recipes.causal_vae import Stage, WholeClips, as_tensor, train_decoder, train_vae
from slipway_recipes.fitting import Schedule
from slipway_recipes.recipe import Making
from slipway_recipes.vae_forms import HUNYUAN_VIDEO, WAN, Form, Vae, form_of
from slipway_recipes.wan_t2v.footage import pictures, pieces

SEEN = subjects(unseen=False)
WAN_CONFIG = {
    "base_dim": 4,
    "z_dim": 4,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True],
}
HUNYUAN_CONFIG = {
    "latent_channels": 4,
    "block_out_channels": [4, 8, 8, 8],
    "layers_per_block": 1,
    "norm_num_groups": 1,
}
FORMS = pytest.mark.parametrize(
    ("form", "config"), [(WAN, WAN_CONFIG), (HUNYUAN_VIDEO, HUNYUAN_CONFIG)], ids=["wan", "hunyuan"]
)


@FORMS
@pytest.mark.parametrize("frames", [1, 5, 13])
def test_whole_clips_equal_diffusers(form: Form, config: dict[str, Any], frames: int) -> None:
    torch.manual_seed(0)
    network = WholeClips(form.network(**config)).eval()
    clip = torch.rand(2, 3, frames, 16, 24) * 2 - 1
    with torch.no_grad():
        latents, log_variance = network.encode(clip)
        pixels = network.decode(latents)
        wanted = network.vae.encode(clip).latent_dist
        decoded = network.vae.decode(latents).sample
    torch.testing.assert_close(latents, wanted.mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(log_variance, wanted.logvar, atol=1e-5, rtol=1e-4)
    # Wan's own decoding cuts off.
    torch.testing.assert_close(pixels.clamp(-1, 1), decoded.clamp(-1, 1), atol=1e-5, rtol=1e-4)


def test_a_form_is_told_by_the_network() -> None:
    assert form_of(HUNYUAN_VIDEO.network(**HUNYUAN_CONFIG)) is HUNYUAN_VIDEO
    assert form_of(WAN.network(**WAN_CONFIG)) is WAN


@FORMS
def test_decoding_begins_with_any_latent_frame(form: Form, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = WholeClips(form.network(**config)).eval()
    clips = torch.rand(1, 3, 9, 16, 16) * 2 - 1
    with torch.no_grad():
        torch.manual_seed(1)
        decoded, mean, log_variance = network(clips, 1)
        torch.manual_seed(1)
        latents = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        wanted = network.decode(latents[:, :, 1:])
    assert decoded.shape == (1, 3, 5, 16, 16) and mean.shape[2] == 3
    torch.testing.assert_close(decoded, wanted)


@pytest.fixture(scope="module", params=[WAN, HUNYUAN_VIDEO], ids=["wan", "hunyuan"])
def hardly_trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vae:
    """Return a VAE with the weights that training begins with, after a step that does next to nothing."""
    folder = tmp_path_factory.mktemp("vae")
    schedule = Schedule(steps=1, learning_rate=1e-6, ema=0.0)
    stages = (
        Stage("pictures", schedule, lambda random, step: pictures(random, SEEN)[:4]),
        Stage("clips", schedule, lambda random, step: pieces(random, 1, SEEN)[:2]),
    )
    config = WAN_CONFIG if request.param is WAN else HUNYUAN_CONFIG
    return train_vae(config, stages, Making(folder, folder / "state", threads=1), request.param)


def test_training_begins_with_latents_that_tell_clips_apart_above_their_noise(
    hardly_trained: Vae,
) -> None:
    clips = as_tensor(pictures(np.random.default_rng(9), SEEN))
    with torch.no_grad():
        latents = hardly_trained.encode(clips).latent_dist
        decoded = hardly_trained.decode(latents.mean).sample
    assert latents.mean.std(dim=0).mean() > 3 * latents.std.mean()
    assert decoded.std(dim=0).mean() > 0.1


def test_training_states_the_spread_of_the_latents(hardly_trained: Vae) -> None:
    clips = np.concatenate([pieces(np.random.default_rng(seed), 1, SEEN) for seed in range(8)])
    form = form_of(hardly_trained)
    with torch.no_grad():
        found = hardly_trained.encode(as_tensor(clips)).latent_dist.mean
        normalized = form.normalize(hardly_trained, found)
    columns = normalized.transpose(0, 1).flatten(1)
    assert columns.mean(dim=1).abs().max() < 0.3
    assert (columns.std(dim=1) - 1).abs().max() < 0.35


@FORMS
def test_decoder_is_trained_on_while_latents_stay(form: Form, config: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    vae = form.network(**config)
    before = {name: weight.clone() for name, weight in vae.state_dict().items()}
    stage = Stage(
        "decoder",
        Schedule(steps=2, learning_rate=1e-2, warmup=1, ema=0.0),
        lambda random, step: pieces(random, 1, SEEN)[:2],
        emphasis=2.0,
    )
    trained = train_decoder(vae, stage, Making(tmp_path, tmp_path / "state", threads=1))
    changed = {name for name, weight in trained.state_dict().items() if not weight.equal(before[name])}
    own = {name for name in before if name.startswith(("decoder.", "post_quant_conv."))}
    assert changed <= own
    assert len(changed) > len(own) / 2


@FORMS
def test_telling_the_spread_changes_no_clip(form: Form, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    vae = form.network(**config).eval()
    clips = torch.rand(1, 3, 5, 16, 16) * 2 - 1
    with torch.no_grad():
        before = vae.encode(clips).latent_dist
        decoded = vae.decode(before.mean).sample
        form.settle(vae, before.mean.transpose(0, 1).flatten(1))
        after = vae.encode(clips).latent_dist
        again = vae.decode(after.mean).sample
    torch.testing.assert_close(again, decoded, atol=1e-4, rtol=1e-3)
    # The noise keeps its share of the latents.
    told = (after.std / after.mean.std(dim=(2, 3, 4), keepdim=True)).mean()
    torch.testing.assert_close(told, (before.std / before.mean.std(dim=(2, 3, 4), keepdim=True)).mean())
