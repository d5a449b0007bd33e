"""VAE and CLIP of the checkpoint, in the file formats of the public checkpoint.

The VAE's file does not contain the mean and deviation of its latents: they are constants in upstream's code.
So the recipe moves the latents of a trained VAE to these values, by the two convolutions of one pixel through
which the latents pass.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKLWan

from slipway_export.checkpoint.renamed_weights import renamed_weights
from slipway_export.families.matrix_game.clip_vision import ImageEncoder, load_vision
from slipway_export.families.matrix_game.random_vision import write_clip
from slipway_export.families.matrix_game.vision import CLIP_FILE, VAE_FILE
from slipway_export.networks import wan_vae_file
from slipway_recipes.matrix_game.latents import Eyes
from slipway_recipes.vae_forms import move_latents

# The CLIP is untrained: its features are those of a fixed network with random weights.
_CLIP = {"channels": 80, "blocks": 2, "image_px": 224}


def with_public_latents(vae: AutoencoderKLWan) -> AutoencoderKLWan:
    """Move a VAE's latents to the mean and deviation of the public VAE, which upstream's code contains.

    Args:
        vae: VAE with mean and deviation of its latents in its configuration; it is changed.
    """
    config, public = vae.config, AutoencoderKLWan(base_dim=8).config
    names = ("latents_mean", "latents_std")
    mean, std = (torch.tensor(getattr(config, name)) for name in names)
    wanted_mean, wanted_std = (torch.tensor(getattr(public, name)) for name in names)
    factor = wanted_std / std
    move_latents(vae, factor, wanted_mean - mean * factor)
    vae.register_to_config(**{name: getattr(public, name) for name in names})
    return vae


def write_vision(folder: Path, vae: AutoencoderKLWan, seed: int) -> None:
    """Write the files of the VAE and of a CLIP of random weights, in half precision.

    Args:
        folder: Folder of the checkpoint.
        vae: VAE from :func:`with_public_latents`.
        seed: Seed of the CLIP.
    """
    weights = renamed_weights(vae, wan_vae_file.source_of(vae))
    torch.save({key: each.half().contiguous() for key, each in weights.items()}, folder / VAE_FILE)
    write_clip(folder / CLIP_FILE, seed, **_CLIP)
    clip = torch.load(folder / CLIP_FILE, weights_only=True)
    torch.save({key: each.half() for key, each in clip.items()}, folder / CLIP_FILE)


def read_vision(folder: Path) -> Eyes:
    """Read the VAE and CLIP that :func:`write_vision` wrote, in float32, as an export does."""
    where = str(folder)
    vae = wan_vae_file.load_vae(folder / VAE_FILE, where)
    return Eyes(vae, ImageEncoder(load_vision(folder / CLIP_FILE, where)).eval())
