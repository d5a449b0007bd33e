"""Checkpoints that the family `wan_t2v` can write: small ones for tests and benchmarks, and public sizes.

A preset consists of configurations; `modeling.wan_presets` turns them into files. It builds and saves small
checkpoints; it streams those of public sizes to the disk.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.demo import demo_preset
from slipway_export.spec import Axis, Preset
from slipway_serving.families.wan_t2v.facts import CHANNELS, FIRST_FRAME, TEXT

EXAMPLE_FILE = "example.txt"
"""File of a checkpoint with a prompt for people who have none of their own."""
PATCH = 2
# WanPipeline's max_sequence_length: prompts are padded with zeros to this number of embeddings.
TEXT_TOKENS = 512


def axes(latent_frames: tuple[int, int, int], tokens: tuple[int, int, int]) -> tuple[Axis, ...]:
    """Return the family's axes.

    Args:
        latent_frames: Min, opt, max of the latent frames; a video has ``4 * (latent_frames - 1) + 1`` frames.
        tokens: Min, opt, max of height and width, in tokens of 16 pixels.
    """
    return (
        # Classifier-free guidance is one call with the prompt and the negative prompt.
        Axis("batch", 1, 2, 2),
        Axis("latent_frames", *latent_frames),
        Axis("token_height", *tokens),
        Axis("token_width", *tokens),
    )


PUBLIC_AXES = axes(latent_frames=(1, 21, 21), tokens=(16, 30, 80))
"""1 to 81 frames, 256 to 1280 pixels a side; 480p is 30 x 52 tokens."""


def _configs(
    transformer: dict[str, Any], text_encoder: dict[str, Any], vae: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    return {
        "transformer/config.json": {"patch_size": [1, PATCH, PATCH], "in_channels": 16, "out_channels": 16}
        | transformer,
        "text_encoder/config.json": {"d_model": transformer["text_dim"]} | text_encoder,
        "vae/config.json": {"z_dim": 16, "dim_mult": [1, 2, 4, 4]} | vae,
    }


def _small(
    summary: str,
    transformer: dict[str, Any],
    text_encoder: dict[str, Any],
    vae: dict[str, Any],
    attentive: bool = False,
    conditioning: str = TEXT,
    image_encoder: dict[str, Any] | None = None,
    distilled: bool = False,
    **ranges: Any,
) -> Preset:
    """Return a preset that writes a small random checkpoint."""
    configs = _configs(
        transformer, {"vocab_size": 512, "num_layers": 2} | text_encoder, {"num_res_blocks": 1} | vae
    )
    if image_encoder is not None:
        configs["image_encoder/config.json"] = image_encoder

    def write(folder: Path, seed: int) -> None:
        from slipway_export.families.wan_t2v.random_checkpoint import name_distilled, write_checkpoint

        write_checkpoint(folder, configs, seed, attentive=attentive, conditioning=conditioning)
        if distilled:
            name_distilled(folder)

    return Preset(summary, configs, axes(**ranges), write)


def _public(
    summary: str,
    experts: int,
    text_layers: int = 24,
    conditioning: str = TEXT,
    vae: dict[str, Any] | None = None,
    ranges: tuple[Axis, ...] = PUBLIC_AXES,
    **transformer: Any,
) -> Preset:
    """Return a preset with the widths of a public checkpoint: UMT5-xxl, and a VAE, by default Wan2.1's."""
    configs = _configs(
        {"attention_head_dim": 128, "text_dim": 4096, "freq_dim": 256} | transformer,
        {
            "vocab_size": 256_384,
            "d_ff": 10_240,
            "d_kv": 64,
            "num_heads": 64,
            "num_layers": text_layers,
            "feed_forward_proj": "gated-gelu",
        },
        {"num_res_blocks": 2, "temperal_downsample": [False, True, True]} | (vae or {"base_dim": 96}),
    )

    def write(folder: Path, seed: int | None) -> None:
        from slipway_export.families.wan_t2v.random_checkpoint import stream_checkpoint

        stream_checkpoint(folder, configs, seed, experts=experts, conditioning=conditioning)

    return Preset(summary, configs, ranges, write, partial(write, seed=None))


_TINY_TRANSFORMER = {
    "num_attention_heads": 2,
    "attention_head_dim": 24,
    "text_dim": 32,
    "freq_dim": 64,
    "ffn_dim": 96,
    "num_layers": 2,
}
TINY = _small(
    "random weights, 1 to 33 frames, 32 to 128 pixels a side; for the demo and the tests",
    transformer=_TINY_TRANSFORMER,
    text_encoder={"d_kv": 8, "d_ff": 64, "num_heads": 4},
    vae={"base_dim": 8},
    attentive=True,
    latent_frames=(1, 5, 9),
    tokens=(2, 4, 8),
)
_tiny_of_5b = partial(
    _small,
    transformer={**_TINY_TRANSFORMER, "in_channels": 48, "out_channels": 48},
    text_encoder={"d_kv": 8, "d_ff": 64, "num_heads": 4},
    vae={
        "base_dim": 8,
        "decoder_base_dim": 8,
        "z_dim": 48,
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
        "latents_mean": [round(0.02 * place - 0.5, 4) for place in range(48)],
        "latents_std": [round(0.5 + 0.02 * place, 4) for place in range(48)],
    },
    attentive=True,
    conditioning=FIRST_FRAME,
    latent_frames=(1, 3, 5),
    tokens=(2, 3, 5),
)
TINY_TI2V = _tiny_of_5b(
    "random weights in the form of Wan2.2-TI2V-5B, 1 to 17 frames, 64 to 160 pixels a side"
)
TINY_FASTWAN = _tiny_of_5b(
    "tiny-ti2v in the form of FastWan2.2-TI2V-5B, which is distilled for 3 steps", distilled=True
)


def _tiny_of_pictures(
    summary: str, image_encoder: dict[str, Any] | None = None, **transformer: Any
) -> Preset:
    """Return a tiny preset of image to video, 1 to 17 frames, 32 to 80 pixels a side."""
    return _small(
        f"random weights in the form of {summary}, 1 to 17 frames, 32 to 80 pixels a side",
        transformer={**_TINY_TRANSFORMER, "in_channels": 36, "out_channels": 16, **transformer},
        text_encoder={"d_kv": 8, "d_ff": 64, "num_heads": 4},
        vae={"base_dim": 8},
        attentive=True,
        conditioning=CHANNELS,
        image_encoder=image_encoder,
        latent_frames=(1, 3, 5),
        tokens=(2, 3, 5),
    )


_TINY_CLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "image_size": 56,
    "patch_size": 14,
    "hidden_act": "gelu",
}
_SEES_CLIP = {"image_dim": 32, "added_kv_proj_dim": 48}
TINY_I2V = _tiny_of_pictures("Wan2.2-I2V-A14B")
TINY_CLIP = _tiny_of_pictures("Wan2.1-I2V", _TINY_CLIP, **_SEES_CLIP)
# 17 tokens for each of two pictures.
TINY_FLF2V = _tiny_of_pictures("Wan2.1-FLF2V", _TINY_CLIP, **_SEES_CLIP, pos_embed_seq_len=34)
SMALL = _small(
    "random weights, 6 layers of 8 x 64 heads, up to 33 frames of 320 pixels a side; for benchmarks",
    transformer={
        "num_attention_heads": 8,
        "attention_head_dim": 64,
        "text_dim": 256,
        "freq_dim": 256,
        "ffn_dim": 2048,
        "num_layers": 6,
    },
    text_encoder={"d_kv": 32, "d_ff": 512, "num_heads": 8},
    vae={"base_dim": 16},
    latent_frames=(1, 5, 9),
    tokens=(2, 15, 20),
)
DEMO_CONFIGS = _configs(
    transformer={
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "text_dim": 96,
        "freq_dim": 64,
        "ffn_dim": 384,
        "num_layers": 6,
    },
    text_encoder={
        "vocab_size": 256,
        "d_kv": 24,
        "num_heads": 4,
        "d_ff": 192,
        "num_layers": 2,
        "feed_forward_proj": "gated-gelu",
    },
    vae={"base_dim": 8, "num_res_blocks": 1, "temperal_downsample": [False, True, True]},
)
"""Configurations of the checkpoint that `slipway train weights wan_t2v` makes."""
DEMO = demo_preset(
    "wan_t2v",
    "trained on coloured shapes in motion; 33 frames of 64 x 64 pixels, as it was trained for",
    axes(latent_frames=(1, 9, 9), tokens=(2, 4, 4)),
    configs=DEMO_CONFIGS,
)
# In public sizes, denoisers and text encoder are bfloat16 and the VAE is float32.
_1_3B = _public(
    "random weights at the sizes of Wan2.1-T2V-1.3B: one expert; 14.7 GB on disk",
    experts=1,
    num_attention_heads=12,
    num_layers=30,
    ffn_dim=8960,
)
_A14B = _public(
    "random weights at the sizes of Wan2.2-T2V-A14B: two experts; 69.0 GB on disk",
    experts=2,
    num_attention_heads=40,
    num_layers=40,
    ffn_dim=13_824,
)
_A14B_2_LAYERS = _public(
    "a14b with 2 of its 40 layers in each expert, and 2 of the text encoder's 24; 7.1 GB on disk",
    experts=2,
    text_layers=2,
    num_attention_heads=40,
    num_layers=2,
    ffn_dim=13_824,
)

_TI2V_5B = _public(
    "random weights at the sizes of Wan2.2-TI2V-5B: one expert, the VAE of Wan2.2",
    experts=1,
    conditioning=FIRST_FRAME,
    # A token has 32 pixels a side: 256 to 1280 pixels, up to 121 frames.
    ranges=axes(latent_frames=(1, 21, 31), tokens=(8, 22, 40)),
    vae={
        "base_dim": 160,
        "decoder_base_dim": 256,
        "z_dim": 48,
        "is_residual": True,
        "in_channels": 12,
        "out_channels": 12,
        "patch_size": 2,
        "scale_factor_spatial": 16,
    },
    num_attention_heads=24,
    num_layers=30,
    ffn_dim=14_336,
    in_channels=48,
    out_channels=48,
)
_I2V_A14B = _public(
    "random weights at the sizes of Wan2.2-I2V-A14B: two experts",
    experts=2,
    conditioning=CHANNELS,
    num_attention_heads=40,
    num_layers=40,
    ffn_dim=13_824,
    in_channels=36,
)

PRESETS = {
    "tiny": TINY,
    "tiny-ti2v": TINY_TI2V,
    "tiny-fastwan": TINY_FASTWAN,
    "tiny-i2v": TINY_I2V,
    "tiny-i2v-clip": TINY_CLIP,
    "tiny-flf2v": TINY_FLF2V,
    "demo": DEMO,
    "small": SMALL,
    "1.3b": _1_3B,
    "a14b": _A14B,
    "a14b-2-layers": _A14B_2_LAYERS,
    "ti2v-5b": _TI2V_5B,
    "i2v-a14b": _I2V_A14B,
}
