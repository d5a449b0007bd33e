"""A world of `matrix_game` by PyTorch alone: no cache, every step over all frames of the world so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.families.matrix_game.causal_wan.cached import CrossAttention, cross_names, whole_flow
from slipway_export.families.matrix_game.clip_vision import ImageEncoder, load_vision
from slipway_export.families.matrix_game.denoiser import world_of
from slipway_export.families.matrix_game.vision import CLIP_FILE, VAE_FILE
from slipway_export.families.wan_t2v.network import decode
from slipway_export.networks.wan_vae_encoder import PictureEncoder
from slipway_export.networks.wan_vae_file import load_vae
from slipway_export.spec import Loading, Precision
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import FewStep

BLOCK = 3


@torch.no_grad()
def world_frames(
    folder: Path, mode: str, pixels: np.ndarray, seed: int, actions: Sequence[Mapping[str, np.ndarray]]
) -> np.ndarray:
    """Return the frames of a world, [frames, height, width, 3], uint8.

    Args:
        folder: of the checkpoint.
        mode: of the world.
        pixels: the first picture, of the size of a frame.
        seed: of the noise.
        actions: of each block, a row for each of its frames.
    """
    world = world_of(Checkpoint(folder, "reference"), mode)
    network, vae = world.load(Precision.FP32, Loading.READ), load_vae(folder / VAE_FILE, "vae")
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 127.5 - 1
    context = ImageEncoder(load_vision(folder / CLIP_FILE, "clip"))(image)
    given = dict(zip(cross_names(network.config), CrossAttention(network)(context), strict=True))
    picture = PictureEncoder(vae)(image)
    picture = torch.cat([picture, picture[:, :, -1:].expand(-1, -1, BLOCK * len(actions), -1, -1)], dim=2)
    rows = {name: torch.from_numpy(np.concatenate([block[name] for block in actions])) for name in actions[0]}
    rows = {name: torch.cat([each[:1].expand(12, -1), each])[None] for name, each in rows.items()}
    noise, clean = Noise(seed), torch.zeros(1, network.config.out_dim, 0, *picture.shape[3:])
    for block in range(len(actions)):
        frames = BLOCK * (block + 1)
        mask = torch.zeros(1, 4, frames, *picture.shape[3:])
        mask[:, :, 0] = 1
        schedule = FewStep(world.inference.denoising_step_list, world.inference.timestep_shift, noise)
        latents: Tensor = noise.next((1, network.config.out_dim, BLOCK, *picture.shape[3:]))
        for timestep in schedule.timesteps:
            inputs = {
                "noisy_input": torch.cat([clean, latents], dim=2),
                "timestep": torch.cat([torch.zeros(1, BLOCK * block), timestep.expand(1, BLOCK)], dim=1),
                "cond_concat": torch.cat([mask, picture[:, :, :frames]], dim=1),
                **{name: each[:, : 12 + 4 * (frames - 1)] for name, each in rows.items()},
                **given,
            }
            flow = whole_flow(network, inputs)[:, :, -BLOCK:]
            latents = schedule.step(flow, timestep, latents)
        clean = torch.cat([clean, latents], dim=2)
    samples = decode(vae, clean)[0].permute(1, 2, 3, 0)
    return ((samples.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).numpy()
