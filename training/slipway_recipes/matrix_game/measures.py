"""Measurement of a checkpoint in worlds that its training never saw, played as in serving.

The judge is evaluated first, on renders that went through the VAE. Then it judges plays from unseen pictures,
generated block by block in PyTorch with the caches of a served world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from numpy.typing import NDArray
from torch import Tensor

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.matrix_game.causal_wan.cached import BlockDenoiser, CrossAttention
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES
from slipway_export.families.matrix_game.causal_wan.inference import (
    MODES,
    Inference,
    inference_file,
    read_inference,
)
from slipway_export.families.matrix_game.causal_wan.network import CausalWan
from slipway_export.families.matrix_game.causal_wan.weights import load_network
from slipway_export.networks.wan_vae_encoder import PictureEncoder
from slipway_export.spec import Loading, Precision
from slipway_loadtests.pictures.plays import CELL_PX, WORLDS, Play, play_of, random_play
from slipway_recipes.causal_vae import as_tensor, psnr_db
from slipway_recipes.judges.worlds import Verdict, obeyed, verdicts
from slipway_recipes.matrix_game.latents import Eyes, conditions_of, told_rows
from slipway_recipes.matrix_game.vision import read_vision
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import FewStep
from slipway_serving.families.matrix_game.keys import VOCABULARIES, actions_of
from slipway_serving.families.matrix_game.picture import to_encoder_input

Frames = NDArray[np.uint8]
PLAYED, PLAY_BLOCKS, WALK_BLOCKS, WALKS = 8, 12, 60, 2
_RENDERS = 4
# Seed of the measurements. No training uses this seed, so no training draws the same examples.
_SEED = 2**31
# A cell of 8 x 8 pixels is unchanged if the mean difference of its colour values is less than this.
_SAME = 24.0


def figures(folder: Path) -> dict[str, float]:
    """Measure the judge, the VAE and the plays of a checkpoint.

    Returns:
        ``judge_obeyed``: share of blocks of renders that are judged as obeyed after the VAE;
        ``vae_psnr_db``: PSNR of these renders; ``…_obeyed``: share of obeyed blocks in a mode's plays;
        ``universal_walk``: share in the last 10 of 60 blocks; ``remembered``: see :func:`remembered`.
    """
    eyes = read_vision(folder)
    random = np.random.default_rng(_SEED)
    renders = [random_play(random, mode, 3) for mode in WORLDS for _ in range(_RENDERS)]
    clips = np.stack([play.frames() for play in renders])
    found = {
        "judge_obeyed": obeyed(
            [
                verdict
                for play, clip in zip(renders, through(eyes.vae, clips), strict=True)
                for verdict in verdicts(clip, play.mode, play.steps())
            ]
        ),
        "vae_psnr_db": psnr_db(eyes.vae, clips),
    }
    for mode in MODES:
        player = Player(folder, mode, eyes)
        plays = unseen_plays(mode, PLAYED, PLAY_BLOCKS)
        found[f"{mode}_obeyed"] = obeyed([each for judged in player.judged(plays) for each in judged])
        if mode == "universal":
            walks = player.judged(unseen_plays(mode, WALKS, WALK_BLOCKS))
            found["universal_walk"] = obeyed([each for judged in walks for each in judged[-10:]])
            found["remembered"] = remembered(player)
    return found


def judge_figures() -> float:
    """Return the share of blocks of unseen renders that the judge sees as obeyed."""
    plays = [play for mode in WORLDS for play in unseen_plays(mode, _RENDERS, PLAY_BLOCKS)]
    return obeyed([each for play in plays for each in verdicts(play.frames(), play.mode, play.steps())])


def unseen_plays(mode: str, count: int, blocks: int) -> list[Play]:
    """Return plays whose keys change every other block, of worlds that no training drew."""
    random = np.random.default_rng([_SEED, list(WORLDS).index(mode), blocks])
    found = []
    for _ in range(count):
        keys = list(VOCABULARIES[mode].keys)
        held = [keys[int(place)] for place in random.integers(len(keys), size=-(-blocks // 2))]
        script = [key for key in held for _ in range(2)][:blocks]
        found.append(play_of(random, mode, [actions_of(key, mode) for key in script]))
    return found


def unseen_picture(mode: str) -> Frames:
    """Return a first picture that no training drew, [height, width, 3]."""
    picture: Frames = unseen_plays(mode, 1, 1)[0].frames()[0]
    return picture


def remembered(player: Player) -> float:
    """Return the share of cells that are unchanged after a block to the right and a block back to the left.

    The view slides by three columns of cells; two of them are in the attention window of the way back.

    Returns:
        Share of unchanged cells among those that left the view.
    """
    random = np.random.default_rng([_SEED, 1])
    script = [actions_of(key, "universal") for key in "qda"]
    plays = [play_of(random, "universal", script) for _ in range(PLAYED)]
    found = []
    for clip in player.frames(plays):
        before, back = (clip[place].astype(np.float32) for place in (8, -1))
        off = np.abs(before - back).mean(axis=-1)[:, : BLOCK_FRAMES * CELL_PX]
        cells = off.reshape(off.shape[0] // CELL_PX, CELL_PX, BLOCK_FRAMES, CELL_PX).mean(axis=(1, 3))
        found.append((cells < _SAME).mean())
    return float(np.mean(found))


@torch.no_grad()
def through(vae: AutoencoderKLWan, clips: Frames) -> Frames:
    """Return clips [clips, frames, height, width, 3] after encoding and decoding by a VAE."""
    return _pixels(vae.decode(vae.encode(as_tensor(clips)).latent_dist.mode()).sample)


def _pixels(decoded: Tensor) -> Frames:
    values = (decoded.clamp(-1, 1) + 1) * 127.5
    found: Frames = values.round().to(torch.uint8).permute(0, 2, 3, 4, 1).numpy()
    return found


class Player:
    """Player of one mode of a checkpoint, in several worlds at a time.

    Args:
        folder: Folder of the checkpoint.
        mode: Mode, a key of `WORLDS`.
        eyes: Encoders from :func:`read_vision`.
    """

    def __init__(self, folder: Path, mode: str, eyes: Eyes) -> None:
        inference = read_inference(folder / inference_file(mode), mode)
        config = f"{inference.model_config}/config.json"
        checkpoint, weights = Checkpoint(folder, str(folder)), MODES[mode].weights
        network = load_network(checkpoint, config, weights, Precision.FP32, Loading.READ)
        self._begin(network, inference, eyes)

    @classmethod
    def of(cls, network: CausalWan, inference: Inference, eyes: Eyes) -> Player:
        """Return a player for a network in memory."""
        player = cls.__new__(cls)
        player._begin(network, inference, eyes)
        return player

    def _begin(self, network: CausalWan, inference: Inference, eyes: Eyes) -> None:
        self._network, self._inference, self._eyes = network, inference, eyes
        self._block, self._cross = BlockDenoiser(network).eval(), CrossAttention(network).eval()

    def judged(self, plays: Sequence[Play]) -> list[list[Verdict]]:
        """Play the plays and judge each block."""
        mode = self._inference.mode
        return [
            verdicts(clip, mode, play.steps()) for play, clip in zip(plays, self.frames(plays), strict=True)
        ]

    @torch.no_grad()
    def frames(self, plays: Sequence[Play]) -> Frames:
        """Generate worlds from the first pictures and the keys of plays.

        Args:
            plays: Plays with equal numbers of frames.

        Returns:
            Frames, [plays, frames, height, width, 3].
        """
        latents = torch.cat(list(self._played(plays)), dim=2)
        config = self._eyes.vae.config
        mean, std = (
            torch.tensor(values).view(1, -1, 1, 1, 1) for values in (config.latents_mean, config.latents_std)
        )
        return _pixels(self._eyes.vae.decode(latents * std + mean).sample)

    def _played(self, plays: Sequence[Play]) -> Any:
        pictures = [torch.from_numpy(to_encoder_input(play.frames()[0])) for play in plays]
        encoder = PictureEncoder(self._eyes.vae)
        shown = np.concatenate([encoder(picture).numpy() for picture in pictures])
        crossed = self._cross(torch.cat([self._eyes.vision(picture) for picture in pictures]))
        latents = 1 + (len(plays[0].rows.keyboard) - 1) // 4
        cond = conditions_of(shown, latents)
        rows = {name: self._rows(plays, name) for name in ("mouse", "keyboard")[not self._mouse :]}
        noise = Noise(0)
        held = empty_caches(self._block, len(plays), tokens=cond.shape[-2] * cond.shape[-1] // 4)
        for first in range(0, latents, BLOCK_FRAMES):
            places = slice(4 * first, 4 * first + self._network.config.action.rows(BLOCK_FRAMES))
            told = [each[:, places] for each in rows.values()]
            start = torch.full((len(plays),), first)
            given = (cond[:, :, first : first + BLOCK_FRAMES], *told, start, *crossed, *held)
            schedule = FewStep(self._inference.denoising_step_list, self._inference.timestep_shift, noise)
            block = noise.next((len(plays), 16, BLOCK_FRAMES, *cond.shape[-2:]))
            for timestep in schedule.timesteps:
                times = torch.full((len(plays), BLOCK_FRAMES), float(timestep))
                block = schedule.step(self._block(block, times, *given)[0], timestep, block)
            _, *held = self._block(block, torch.zeros(len(plays), BLOCK_FRAMES), *given)
            yield block

    @property
    def _mouse(self) -> bool:
        return self._network.config.action.enable_mouse

    def _rows(self, plays: Sequence[Play], name: str) -> Tensor:
        action = self._network.config.action
        actions = [getattr(play.rows, name) for play in plays]
        count = action.rows(1 + (len(actions[0]) - 1) // 4)
        return torch.from_numpy(np.stack([told_rows(each, action, count) for each in actions]))


def empty_caches(block: BlockDenoiser, worlds: int, tokens: int) -> list[Tensor]:
    """Return the empty caches before the first block of worlds.

    Args:
        block: Block denoiser of the mode.
        worlds: Number of worlds.
        tokens: Number of tokens of a latent frame.
    """
    config, action = block.network.config, block.network.config.action
    heads = action.heads_num
    sizes: Mapping[str, tuple[int, ...]] = {
        "self": (tokens, config.num_heads, config.head_dim),
        "mouse": (tokens, heads, action.mouse_hidden_dim // heads),
        "keyboard": (heads, action.keyboard_hidden_dim // heads),
    }
    return [torch.zeros(worlds, block.held_frames, *sizes[name.partition("_")[0]]) for name in block.names]
