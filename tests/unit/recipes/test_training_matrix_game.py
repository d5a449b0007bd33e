"""Training of Matrix-Game's demo worlds: taught as they are served, and written as the export reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.matrix_game.causal_wan.cached import BlockDenoiser, CrossAttention
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES, CLIP_TOKENS, read_config
from slipway_export.families.matrix_game.causal_wan.inference import MODES
from slipway_export.families.matrix_game.causal_wan.presets import randomize
from slipway_export.families.matrix_game.causal_wan.tiny import demo_config
from slipway_export.families.matrix_game.family import FAMILY
from slipway_export.families.matrix_game.presets import TINY
from slipway_export.families.matrix_game.vision import VAE_FILE
from slipway_export.networks.wan_vae_file import load_vae
from slipway_export.spec import Loading, Precision
from slipway_loadtests.pictures.plays import frames_of
from slipway_recipes.causal_vae import as_tensor
from slipway_recipes.fitting import Schedule
from slipway_recipes.matrix_game import measures, recipe
from slipway_recipes.matrix_game.denoisers import Course, new_network, predicted, train_network
from slipway_recipes.matrix_game.latents import Plays, conditions_of
from slipway_recipes.matrix_game.vision import with_public_latents, write_vision
from slipway_recipes.recipe import Making

BLOCKS, VISUAL_DIM = 3, 16


def some_plays(mode: str) -> Plays:
    torch.manual_seed(0)
    action = read_config(demo_config(mode), mode).action
    frames = BLOCKS * BLOCK_FRAMES
    return Plays(
        torch.randn(2, 16, frames, 4, 4),
        torch.randn(2, 20, frames, 4, 4),
        torch.randn(2, CLIP_TOKENS, VISUAL_DIM),
        torch.randint(0, 2, (2, action.rows(frames), action.keyboard_dim_in)).float(),
        0.1 * torch.randn(2, action.rows(frames), 2) if action.enable_mouse else None,
    )


@pytest.mark.parametrize("mode", list(MODES))
@torch.no_grad()
def test_blocks_are_taught_what_they_are_served(mode: str) -> None:
    network = new_network(demo_config(mode), VISUAL_DIM, seed=0).eval()
    randomize(network, 0)
    plays = some_plays(mode)
    sigmas = torch.rand(2, BLOCKS).repeat_interleave(BLOCK_FRAMES, dim=1)
    noisy = torch.randn_like(plays.latents)
    taught = predicted(network, plays, plays.latents, noisy, sigmas)
    block, action = BlockDenoiser(network), network.config.action
    crossed = CrossAttention(network)(plays.visual_context)
    held = None
    for first in range(0, BLOCKS * BLOCK_FRAMES, BLOCK_FRAMES):
        frames = slice(first, first + BLOCK_FRAMES)
        rows = slice(4 * first, 4 * first + action.rows(BLOCK_FRAMES))
        told = [each[:, rows] for each in (plays.mouse, plays.keyboard) if each is not None]
        held = held or measures.empty_caches(block, 2, tokens=4)
        given = (plays.cond_concat[:, :, frames], *told, torch.full((2,), first), *crossed)
        served = block(noisy[:, :, frames], 1000 * sigmas[:, frames], *given, *held)[0]
        torch.testing.assert_close(taught[:, :, frames], served, rtol=1e-3, atol=1e-3)
        _, *held = block(plays.latents[:, :, frames], torch.zeros(2, BLOCK_FRAMES), *given, *held)


def test_a_vae_with_public_latents_decodes_as_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vae = AutoencoderKLWan(base_dim=8, num_res_blocks=1).eval().requires_grad_(False)
    clip = np.stack([recipe.pieces(np.random.default_rng(0), 1)[0]])
    with torch.no_grad():
        latents = vae.encode(as_tensor(clip)).latent_dist.mode()
        vae.register_to_config(
            latents_mean=latents.mean(dim=(0, 2, 3, 4)).tolist(),
            latents_std=latents.std(dim=(0, 2, 3, 4)).tolist(),
        )
        before = vae.decode(latents).sample
        vae = with_public_latents(vae)
        moved = vae.encode(as_tensor(clip)).latent_dist.mode()
        torch.testing.assert_close(vae.decode(moved).sample, before, rtol=1e-3, atol=1e-3)
    public = AutoencoderKLWan(base_dim=8).config
    torch.testing.assert_close(
        moved.mean(dim=(0, 2, 3, 4)), torch.tensor(public.latents_mean), rtol=1e-3, atol=1e-3
    )
    torch.testing.assert_close(
        moved.std(dim=(0, 2, 3, 4)), torch.tensor(public.latents_std), rtol=1e-3, atol=1e-3
    )
    write_vision(tmp_path, vae, seed=0)
    read = load_vae(tmp_path / VAE_FILE, "made")
    assert read.config.latents_mean == vae.config.latents_mean
    for key, weight in read.state_dict().items():
        assert torch.equal(weight, vae.state_dict()[key].half().float()), key


def test_conditions_mark_the_first_frame_alone() -> None:
    pictures = np.random.default_rng(0).standard_normal((2, 16, 4, 3, 5)).astype(np.float32)
    found = conditions_of(pictures, 6)
    assert found.shape == (2, 20, 6, 3, 5)
    assert (found[:, :4, 0] == 1).all() and (found[:, :4, 1:] == 0).all()
    assert (found[:, 4:, :4].numpy() == pictures).all() and (
        found[:, 4:, 5].numpy() == pictures[:, :, 3]
    ).all()


def test_sigmas_are_those_of_the_served_steps() -> None:
    # Of the fact sheet's warped timesteps.
    assert recipe.sigmas_of("universal") == pytest.approx((1.0, 0.90884, 0.71398), abs=1e-4)
    assert recipe.sigmas_of("templerun") == pytest.approx((1.0, 0.9375, 0.83333, 0.625), abs=1e-4)


def test_training_learns_plays_that_it_sees_again_and_again(tmp_path: Path) -> None:
    mode = "templerun"
    plays = some_plays(mode)

    class Same:
        def draw(self, random: np.random.Generator, batch: int) -> Plays:
            return plays

    network = new_network(demo_config(mode), VISUAL_DIM, seed=0)
    course = Course(Schedule(40, 3e-3, warmup=5, ema=0.0), (1.0,), own_from=0.5)
    noisy = torch.randn_like(plays.latents)
    sigmas = torch.ones(2, BLOCKS * BLOCK_FRAMES)

    def error(of: torch.nn.Module) -> float:
        with torch.no_grad():
            flow = predicted(of, plays, plays.latents, noisy, sigmas)
        return float((flow - (noisy - plays.latents)).square().mean())

    before = error(network)
    making = Making(tmp_path, tmp_path / "state", threads=1)
    trained = train_network(network, Same(), course, making, mode)  # type: ignore[arg-type]
    assert error(trained) < 0.8 * before


@pytest.mark.long
def test_recipe_writes_worlds_that_the_export_loads_and_that_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipway_recipes.matrix_game.latents._CHUNK", 2)
    monkeypatch.setattr("slipway_recipes.causal_vae._MEASURED_STEPS", 2)
    monkeypatch.setattr(recipe, "BLOCKS", 2)
    for name, value in {"PLAYED": 2, "PLAY_BLOCKS": 2, "WALKS": 1, "WALK_BLOCKS": 3, "_RENDERS": 1}.items():
        monkeypatch.setattr(measures, name, value)
    making = Making(tmp_path / "made", tmp_path / "state", threads=1, scale=1e-5)
    figures = recipe.RECIPE.run(making)
    assert set(figures) == set(recipe.CARD.results)
    checkpoint = Checkpoint(making.output, "made")
    for mode in MODES:
        plan = FAMILY.variants[mode].plan(checkpoint, TINY.axes)
        for component in plan.components:
            component.load(Precision.FP32, Loading.READ)
        assert {stored.dtype for stored in checkpoint.stored_in(MODES[mode].weights).values()} == {
            torch.float16
        }
        assert (making.output / f"{mode}.png").is_file()
    assert sum(file.stat().st_size for file in making.output.rglob("*") if file.is_file()) < 9e6
    player = measures.Player(making.output, "universal", measures.read_vision(making.output))
    clips = player.frames(measures.unseen_plays("universal", 2, 2))
    assert clips.shape == (2, frames_of(6), 48, 80, 3)
    # Once made, it is written again without a step.
    again: list[str] = []
    recipe.make(replace(making, report=again.append))
    assert [line for line in again if "going on" in line] == again
