"""Training data of the networks, encoded once: latents of plays on disk, actions and first pictures."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from torch import Tensor, nn

from slipway_export.families.matrix_game.causal_wan.config import ActionConfig
from slipway_export.networks.wan_vae_encoder import PictureEncoder
from slipway_loadtests.pictures.plays import BLOCK_LATENTS, WORLDS, random_play
from slipway_recipes.array_cache import Arrays, kept_chunks
from slipway_recipes.causal_vae import WholeClips, latents_of
from slipway_recipes.recipe import Making
from slipway_recipes.vae_forms import WAN
from slipway_serving.families.matrix_game.facts import Latents
from slipway_serving.families.matrix_game.picture import conditions, to_encoder_input

# Each chunk has its own seed, so that encoding can resume after an interruption.
_CHUNK, _BATCH = 64, 4
MASK_CHANNELS = 4


@dataclass(frozen=True)
class Plays:
    """Batch of plays as a network sees them, float32.

    Args:
        latents: Latents, [batch, 16, frames, height / 8, width / 8], unit variance.
        cond_concat: Conditions of the first pictures, [batch, 20, frames, height / 8, width / 8].
        visual_context: Features of the first pictures, [batch, 257, width].
        keyboard: Keys, [batch, rows, columns], from 12 frames before the first frame.
        mouse: Mouse movement, [batch, rows, 2]; None if the mode has no mouse.
    """

    latents: Tensor
    cond_concat: Tensor
    visual_context: Tensor
    keyboard: Tensor
    mouse: Tensor | None

    def to(self, device: torch.device) -> Plays:
        """Return the plays on a device."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: each.to(device) for name, each in given.items() if each is not None})


@dataclass(frozen=True)
class Encoded:
    """Data set of encoded plays of a mode.

    Args:
        arrays: Arrays by the names of :class:`Plays`, [plays, ...]. In place of `cond_concat`, `picture`
            contains the latents of the first picture by :class:`PictureEncoder`.
        mouse: True if the mode has a mouse.
    """

    arrays: Arrays
    mouse: bool

    def draw(self, random: np.random.Generator, batch: int) -> Plays:
        """Return random plays."""
        places = random.integers(len(self.arrays["latents"]), size=batch)
        chosen = {name: torch.from_numpy(each[places]).float() for name, each in self.arrays.items()}
        return Plays(
            chosen["latents"],
            conditions_of(chosen["picture"].numpy(), chosen["latents"].shape[2]),
            chosen["visual_context"],
            chosen["keyboard"],
            chosen["mouse"] if self.mouse else None,
        )


@dataclass(frozen=True)
class Eyes:
    """Encoders of the first picture and of the plays.

    Args:
        vae: VAE whose latents have the mean and deviation of its configuration.
        vision: Image encoder from pictures [1, 3, height, width] in [-1, 1] to features [1, 257, width].
    """

    vae: AutoencoderKLWan
    vision: nn.Module


def encode_plays(
    eyes: Eyes, mode: str, action: ActionConfig, blocks: int, count: int, making: Making
) -> Encoded:
    """Draw and encode plays, and resume where an earlier process of the same run stopped.

    Args:
        eyes: Encoders of the first picture and of the plays.
        mode: Mode, a key of `WORLDS`.
        action: Sizes of the network's action module.
        blocks: Number of blocks of a play.
        count: Smallest number of plays.
        making: Seed, threads and state folder.
    """
    torch.set_num_threads(making.threads)

    def make(chunk: int) -> Arrays:
        random = np.random.default_rng([making.seed, list(WORLDS).index(mode), chunk])
        return _encoded(eyes, mode, action, blocks, random)

    found = kept_chunks(making.state / "plays" / mode, -(-count // _CHUNK), make, making.report)
    return Encoded(found, action.enable_mouse)


@torch.no_grad()
def _encoded(
    eyes: Eyes, mode: str, action: ActionConfig, blocks: int, random: np.random.Generator
) -> dict[str, NDArray[Any]]:
    network, pictures = WholeClips(eyes.vae), PictureEncoder(eyes.vae)
    plays = [random_play(random, mode, blocks) for _ in range(_CHUNK)]
    found: dict[str, list[NDArray[Any]]] = {"latents": [], "picture": [], "visual_context": []}
    for first in range(0, _CHUNK, _BATCH):
        clips = np.stack([play.frames() for play in plays[first : first + _BATCH]])
        found["latents"] += list(WAN.normalize(eyes.vae, latents_of(network, clips)).half().numpy())
        for clip in clips:
            picture = torch.from_numpy(to_encoder_input(clip[0]))
            found["picture"].append(pictures(picture)[0].half().numpy())
            found["visual_context"].append(eyes.vision(picture)[0].half().numpy())
    rows = action.rows(BLOCK_LATENTS * blocks)
    told = {
        name: np.stack([told_rows(getattr(play.rows, name), action, rows) for play in plays])
        for name in ("keyboard", "mouse")
    }
    return {name: np.stack(each) for name, each in found.items()} | told


def told_rows(actions: NDArray[np.float32], action: ActionConfig, rows: int) -> NDArray[np.float32]:
    """Return a network's first action rows of a play; copies of the first row stand for earlier ones."""
    before = np.repeat(actions[:1], action.window_rows, axis=0)
    told: NDArray[np.float32] = np.concatenate([before, actions])[:rows]
    return told


def conditions_of(pictures: NDArray[np.float32], frames: int) -> Tensor:
    """Return `cond_concat` of the first frames of plays, [plays, 20, frames, height / 8, width / 8].

    Args:
        pictures: Latents by :class:`PictureEncoder`, [plays, 16, picture frames, height / 8, width / 8].
        frames: Number of latent frames.
    """
    height, width = pictures.shape[-2:]
    sizes = Latents(
        channels=pictures.shape[1],
        mask_channels=MASK_CHANNELS,
        height=height,
        width=width,
        block_frames=frames,
        held_frames=0,
        positions=frames,
        picture_frames=pictures.shape[2],
    )
    return torch.from_numpy(np.concatenate([conditions(each[None], 0, sizes) for each in pictures]))
