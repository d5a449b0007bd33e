"""The plays that a network learns from, encoded once: latents on the disk, actions, and the first picture."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from torch import Tensor, nn

from slipway_export.modeling.causal_wan.config import ActionConfig
from slipway_export.modeling.wan_encoder import PictureEncoder
from slipway_serving.matrix_game.facts import Latents
from slipway_serving.matrix_game.picture import conditions, samples
from slipway_training.causal_vae import WholeClips, latents_of
from slipway_training.kept import Arrays, kept_chunks
from slipway_training.recipe import Making
from slipway_training.vae_forms import WAN
from slipway_training.worlds.plays import BLOCK_LATENTS, WORLDS, random_play

# A chunk is drawn by a seed of its own, so encoding goes on where an earlier process ended.
_CHUNK, _BATCH = 64, 4
MASK_CHANNELS = 4


@dataclass(frozen=True)
class Plays:
    """A batch of plays, as a network sees them; float32.

    Args:
        latents: [batch, 16, frames, height / 8, width / 8], unit variance.
        cond_concat: [batch, 20, frames, height / 8, width / 8].
        visual_context: [batch, 257, width], features of the first pictures.
        keyboard: [batch, rows, columns], from 12 frames before the first.
        mouse: [batch, rows, 2]; None where there is none.
    """

    latents: Tensor
    cond_concat: Tensor
    visual_context: Tensor
    keyboard: Tensor
    mouse: Tensor | None

    def to(self, device: torch.device) -> Plays:
        """Return them on a device."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: each.to(device) for name, each in given.items() if each is not None})


@dataclass(frozen=True)
class Encoded:
    """Plays of a mode.

    Args:
        arrays: by the names of :class:`Plays`, [plays, ...]; of the first picture `picture`, the latents of
            :class:`PictureEncoder`, in place of `cond_concat`.
        mouse: whether the mode has one.
    """

    arrays: Arrays
    mouse: bool

    def draw(self, random: np.random.Generator, batch: int) -> Plays:
        """Return plays chosen by chance."""
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
    """What sees the first picture and the plays.

    Args:
        vae: whose latents have the mean and the spread of its configuration.
        vision: pictures [1, 3, height, width] in [-1, 1] to features [1, 257, width].
    """

    vae: AutoencoderKLWan
    vision: nn.Module


def encode_plays(
    eyes: Eyes, mode: str, action: ActionConfig, blocks: int, count: int, making: Making
) -> Encoded:
    """Draw plays and encode them, from where an earlier process of the same making left it.

    Args:
        eyes: see there.
        mode: a key of `WORLDS`.
        action: sizes of the network's action module.
        blocks: of a play.
        count: how many at least.
        making: seed, threads and state.
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
            picture = torch.from_numpy(samples(clip[0]))
            found["picture"].append(pictures(picture)[0].half().numpy())
            found["visual_context"].append(eyes.vision(picture)[0].half().numpy())
    rows = action.rows(BLOCK_LATENTS * blocks)
    told = {
        name: np.stack([told_rows(getattr(play.rows, name), action, rows) for play in plays])
        for name in ("keyboard", "mouse")
    }
    return {name: np.stack(each) for name, each in found.items()} | told


def told_rows(actions: NDArray[np.float32], action: ActionConfig, rows: int) -> NDArray[np.float32]:
    """Return the rows that a network is told of a play from its start; the first stands for earlier ones."""
    before = np.repeat(actions[:1], action.window_rows, axis=0)
    told: NDArray[np.float32] = np.concatenate([before, actions])[:rows]
    return told


def conditions_of(pictures: NDArray[np.float32], frames: int) -> Tensor:
    """Return `cond_concat` of the first frames of plays, [plays, 20, frames, height / 8, width / 8].

    Args:
        pictures: latents of :class:`PictureEncoder`, [plays, 16, picture frames, height / 8, width / 8].
        frames: of latents.
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
