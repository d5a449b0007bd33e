"""Checkpoints that the family `matrix_game` can write: small ones of all modes, one of public size."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from slipway_export.checkpoint.demo import demo_preset
from slipway_export.families.matrix_game.causal_wan.config import POSITIONS
from slipway_export.families.matrix_game.causal_wan.inference import MODES
from slipway_export.families.matrix_game.causal_wan.tiny import (
    config_folder,
    demo_config,
    public_config,
    tiny_config,
)
from slipway_export.families.matrix_game.vision import CLIP_FILE, VAE_FILE
from slipway_export.spec import Axis, Preset


def axes(latent_frames: tuple[int, int, int]) -> tuple[Axis, ...]:
    """Return the family's axes.

    Args:
        latent_frames: Min, opt, max of the latent frames; a video has ``4 * latent_frames - 3`` frames.
    """
    return Axis("batch", 1, 1, 2), Axis("latent_frames", *latent_frames)


PUBLIC_AXES = axes(latent_frames=(1, 150, POSITIONS))
"""Traced at the default of upstream's exporter; the maximum is the number of positions."""

# Upstream's CLIP makes 257 features from 224 px a side. The small one does too, at a fraction of the width.
_CLIP_PX = 224


def _write_tiny(folder: Path, seed: int) -> None:
    from slipway_export.families.matrix_game.causal_wan.presets import write_denoiser
    from slipway_export.families.matrix_game.random_vision import write_clip, write_vae

    for place, mode in enumerate(MODES):
        write_denoiser(folder, mode, seed + place)
    write_vae(folder / VAE_FILE, seed)
    write_clip(folder / CLIP_FILE, seed, image_px=_CLIP_PX)


TINY = Preset(
    "random weights, all modes, 3 layers of 2 x 48, frames of 48 x 80 pixels; for the demo and the tests",
    {f"{config_folder(mode)}/config.json": tiny_config(mode) for mode in MODES},
    axes(latent_frames=(1, 4, 9)),
    _write_tiny,
)

DEMO = demo_preset(
    "matrix_game",
    "trained on small worlds seen from above, all modes; frames of 48 x 80 pixels",
    axes(latent_frames=(1, 4, 9)),
    configs={f"{config_folder(mode)}/config.json": demo_config(mode) for mode in MODES},
)


def _write_public(folder: Path, seed: int | None) -> None:
    from slipway_export.families.matrix_game.causal_wan.presets import stream_denoiser
    from slipway_export.families.matrix_game.random_vision import write_clip, write_vae

    stream_denoiser(folder, _PUBLIC_MODE, seed)
    write_vae(folder / VAE_FILE, seed, base_dim=96, num_res_blocks=2)
    write_clip(folder / CLIP_FILE, seed, channels=1280, blocks=32, image_px=_CLIP_PX)


_PUBLIC_MODE = "universal"
PUBLIC = Preset(
    "random weights at the sizes of Skywork/Matrix-Game-2.0, universal only; 6.3 GB on disk",
    {f"{config_folder(_PUBLIC_MODE)}/config.json": public_config(_PUBLIC_MODE)},
    PUBLIC_AXES,
    _write_public,
    partial(_write_public, seed=None),
)

PRESETS = {"tiny": TINY, "demo": DEMO, "public": PUBLIC}
