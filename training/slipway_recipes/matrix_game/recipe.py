"""Recipe of the Matrix-Game checkpoint: train a VAE on all modes' plays, then each mode's network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import yaml
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file

from slipway_export.checkpoint.note import FILE as NOTE_FILE
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES, read_config
from slipway_export.families.matrix_game.causal_wan.inference import MODES, inference_file
from slipway_export.families.matrix_game.causal_wan.network import CausalWan
from slipway_export.families.matrix_game.causal_wan.tiny import config_folder, demo_config, tiny_inference
from slipway_export.families.matrix_game.causal_wan.weights import PREFIX
from slipway_export.families.wan_t2v.presets import DEMO as WAN_DEMO
from slipway_loadtests.pictures.plays import WORLDS, frames_of, random_play
from slipway_recipes.card import Card
from slipway_recipes.causal_vae import Stage, train_vae
from slipway_recipes.fitting import Schedule
from slipway_recipes.matrix_game.denoisers import Course, new_network, train_network
from slipway_recipes.matrix_game.latents import encode_plays
from slipway_recipes.matrix_game.measures import figures, unseen_picture
from slipway_recipes.matrix_game.vision import read_vision, with_public_latents, write_vision
from slipway_recipes.recipe import Making, Recipe
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import FewStep
from slipway_serving.system.temporary_folders import TemporaryFolder

VAE_SCHEDULES = {
    "vae": Schedule(steps=1400, learning_rate=1e-3, warmup=50, weight_decay=1e-4, ema=0.99),
    "vae_longer": Schedule(steps=1800, learning_rate=1.2e-3, warmup=50, weight_decay=1e-4, ema=0.99),
}
# A runner has three poses to draw, so the last mode needs more steps than the one before.
SCHEDULES = {
    "universal": Schedule(steps=5000, learning_rate=2e-3, ema=0.998),
    "gta_drive": Schedule(steps=900, learning_rate=1e-3, ema=0.998),
    "templerun": Schedule(steps=5000, learning_rate=1.2e-3, ema=0.998),
}
PLAYS, BLOCKS = 512, 6
VISUAL_DIM = 80
NOTE = (
    "This small checkpoint learned worlds of simple drawings. What comes into view at an edge is invented,"
    " and smeared."
)
# Input of a VAE's step: plays, latent frames. Every fourth step sees one longer piece.
_PIECES, _LONGER, _LONGER_EVERY = (2, 3), (1, 6), 4


def make(making: Making) -> None:
    """Train the networks, and write the checkpoint in half precision."""
    making.output.mkdir(parents=True, exist_ok=True)
    stages = [Stage(name, schedule, pieces) for name, schedule in VAE_SCHEDULES.items()]
    vae = train_vae(WAN_DEMO.configs["vae/config.json"], stages, making, initial=vae_of_shapes())
    assert isinstance(vae, AutoencoderKLWan)
    write_vision(making.output, with_public_latents(vae), making.seed)
    eyes = read_vision(making.output)
    first: CausalWan | None = None
    for mode in MODES:
        config = demo_config(mode)
        action = read_config(config, mode).action
        plays = encode_plays(eyes, mode, action, BLOCKS, making.steps_of(PLAYS), making)
        network = new_network(config, VISUAL_DIM, making.seed)
        if first is not None:
            _begin_as(network, first)
        trained = train_network(network, plays, Course(SCHEDULES[mode], sigmas_of(mode)), making, mode)
        first = first or trained
        write_network(making.output, mode, trained)
        Image.fromarray(unseen_picture(mode)).save(making.output / f"{mode}.png")
    (making.output / NOTE_FILE).write_text(f"{NOTE}\n", encoding="utf-8")


def vae_of_shapes() -> AutoencoderKLWan:
    """Return the VAE of the demo checkpoint of `wan_t2v`, which gives the initial weights."""
    with TemporaryFolder("slipway-training-wan-") as folder:
        WAN_DEMO.write(folder, 0)
        vae: AutoencoderKLWan = AutoencoderKLWan.from_pretrained(f"{folder}/vae", torch_dtype=torch.float32)
    return vae


def pieces(random: np.random.Generator, step: int) -> NDArray[np.uint8]:
    """Draw pieces of plays for a step of the VAE's training, [pieces, 4k + 1 frames, height, width, 3]."""
    batch, latents = _PIECES if step % _LONGER_EVERY else _LONGER
    modes, cut = list(WORLDS), []
    for _ in range(batch):
        play = random_play(random, modes[int(random.integers(len(modes)))], 2)
        first = 4 * int(random.integers(2 * BLOCK_FRAMES + 1 - latents))
        cut.append(play.frames()[first : first + frames_of(latents)])
    return np.stack(cut)


def sigmas_of(mode: str) -> tuple[float, ...]:
    """Return the sigmas of a mode's few denoising steps."""
    inference = tiny_inference(mode)
    shift = inference["model_kwargs"]["timestep_shift"]
    schedule = FewStep(inference["denoising_step_list"], shift, Noise(0))
    return tuple(float(schedule.sigma(timestep)) for timestep in schedule.timesteps)


def _begin_as(network: CausalWan, first: CausalWan) -> None:
    """Copy the weights of one network into another wherever key and shape are the same."""
    own = network.state_dict()
    same = {
        key: each for key, each in first.state_dict().items() if key in own and own[key].shape == each.shape
    }
    network.load_state_dict(own | same)


def write_network(folder: Path, mode: str, network: CausalWan) -> None:
    """Write a mode's network in half precision, with its configuration and its inference YAML."""
    texts = {
        f"{config_folder(mode)}/config.json": json.dumps(demo_config(mode), indent=2, sort_keys=True) + "\n",
        inference_file(mode): yaml.safe_dump(tiny_inference(mode), sort_keys=False),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    weights = folder / MODES[mode].weights
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_file({PREFIX + key: each.half().contiguous() for key, each in network.state_dict().items()}, weights)


CARD = Card(
    title="Matrix-Game worlds seen from above",
    is_of=(
        "A small checkpoint in the layout of Skywork/Matrix-Game-2.0 with upstream's configs, in half"
        " precision: a network of 3 layers of 4 x 32 for each mode, the VAE of the demo checkpoint of"
        " `wan_t2v` trained on these worlds, and a CLIP of random weights. Frames are of 48 x 80 pixels; a"
        " first picture of each mode lies beside it."
    ),
    data=(
        "Plays that a program draws: open country for `universal`, a road for `gta_drive`, ruins for"
        " `templerun`, in three colours of land, a new map for each play. A key that is held slides the view"
        " by 2 pixels a frame: W, A, S, D walk, and the mouse slides the view as well; in `templerun` turns"
        " run to the side, side steps run aslant, and jumps and slides show in the runner."
    ),
    training=(
        "The VAE on pieces of plays; then each network on plays of 6 blocks by flow matching at the sigmas of"
        " its few steps, all blocks at once behind the true ones before them, later behind what the network"
        " itself made of some noise. The other modes begin with what `universal` has learnt. The weights here"
        " came of several sittings, in which worlds and steps were settled: the VAE and the first 3,300 steps"
        " of `universal` saw a fourth land and fewer things on all of them, 1,150 steps more the worlds as"
        " they are now. What is made again is like these weights, not the same."
    ),
    results={
        "judge_obeyed": "the judge on 12 renders, after the VAE: blocks read as obeyed, share",
        "vae_psnr_db": "the VAE on 12 renders, PSNR, dB",
        "universal_obeyed": "8 plays of 12 blocks from unseen pictures: blocks that obey their keys, share",
        "gta_drive_obeyed": "as many of `gta_drive`, share",
        "templerun_obeyed": "as many of `templerun`, share",
        "universal_walk": "the last 10 blocks of walks of 60: obeyed, share",
        "remembered": "cells that left the view for a block, as they were when they are back, share",
    },
    limits=(
        "The mouse counts by its direction alone. It knows no other worlds, keys of a latent frame's later"
        " frames have no effect, and what is new at an edge is invented."
    ),
)

RECIPE = Recipe(
    family="matrix_game",
    summary="a video VAE and a network for each mode, on plays of small worlds seen from above",
    hours=2.0,
    make=make,
    measure=figures,
    card=CARD,
)
