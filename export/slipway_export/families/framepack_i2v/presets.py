"""Checkpoints that the family `framepack_i2v` can write: a small one, and those of public sizes.

A preset consists of configurations. `modeling.framepack_presets` streams the checkpoint to the disk, in the
combined layout of the public repositories.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.demo import demo_preset
from slipway_export.spec import Axis, Preset

IMAGE_TOKENS = 729
"""Tokens from the public image encoder: 27 x 27 patches of 14 px."""
SECTION_FRAMES = 9
"""Latent frames of a section; FramePack was trained with no other number."""


def axes(
    tokens: tuple[int, int, int], text_tokens: tuple[int, int, int], tile_frames: tuple[int, int, int]
) -> tuple[Axis, ...]:
    """Return the family's axes.

    Args:
        tokens: Min, opt, max of height and width, in tokens of 16 pixels.
        text_tokens: Min, opt, max of the prompt's tokens after the template, padding included.
        tile_frames: Min, opt, max of the latent frames that are decoded at once.
    """
    return (
        # Guidance is distilled into the weights; classifier-free guidance would be one call with two prompts.
        Axis("batch", 1, 1, 2),
        Axis("latent_frames", *[SECTION_FRAMES] * 3),
        Axis("token_height", *tokens),
        Axis("token_width", *tokens),
        Axis("text_tokens", *text_tokens),
        Axis("tile_frames", *tile_frames),
    )


PUBLIC_AXES = axes(tokens=(1, 40, 80), text_tokens=(1, 256, 512), tile_frames=(1, 5, 5))
"""Up to 1280 pixels a side; 640 x 640 is 40 x 40 tokens. The minimum is 1, since the VAE may run in tiles."""

_SHARED: dict[str, dict[str, Any]] = {
    "transformer": {
        "in_channels": 16,
        "out_channels": 16,
        "patch_size": 2,
        "patch_size_t": 1,
        "guidance_embeds": True,
        "has_image_proj": True,
        "has_clean_x_embedder": True,
    },
    "text_encoder": {"rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False},
    # The largest id marks the end of a text, as in the public checkpoint.
    "text_encoder_2": {
        "max_position_embeddings": 77,
        "eos_token_id": 2,
        "bos_token_id": 0,
        "hidden_act": "quick_gelu",
    },
    "image_encoder": {"patch_size": 14, "num_channels": 3, "hidden_act": "gelu_pytorch_tanh"},
    "vae": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 16,
        "scaling_factor": 0.476986,
        "spatial_compression_ratio": 8,
        "temporal_compression_ratio": 4,
    },
}


def _configs(parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the configurations by file; each is the part's entry of `_SHARED` with its own values added."""
    return {f"{part}/config.json": _SHARED[part] | own for part, own in parts.items()}


def _preset(summary: str, ranges: tuple[Axis, ...], dtype: str, parts: dict[str, dict[str, Any]]) -> Preset:
    """Return a preset.

    Args:
        summary: Line of text that describes the preset.
        ranges: Axes of the preset.
        dtype: Type of the weights, by torch's name; those of the VAE are float32.
        parts: Values that each part's configuration adds to `_SHARED`.
    """
    configs = _configs(parts)

    def write(folder: Path, seed: int | None) -> None:
        from slipway_export.families.framepack_i2v.random_checkpoint import write_checkpoint

        write_checkpoint(folder, configs, seed, dtype=dtype)

    return Preset(summary, configs, ranges, write, partial(write, seed=None))


def _public(summary: str, dual: int, single: int, text_layers: int, image_layers: int) -> Preset:
    """Return a preset with the widths of the public checkpoints."""
    return _preset(
        summary,
        PUBLIC_AXES,
        "bfloat16",
        {
            "transformer": {
                "num_attention_heads": 24,
                "attention_head_dim": 128,
                "num_layers": dual,
                "num_single_layers": single,
                "num_refiner_layers": 2,
                "text_embed_dim": 4096,
                "pooled_projection_dim": 768,
                "image_proj_dim": 1152,
                "rope_axes_dim": [16, 56, 56],
                "rope_theta": 256.0,
            },
            "text_encoder": {
                "hidden_size": 4096,
                "intermediate_size": 14_336,
                "num_hidden_layers": text_layers,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "vocab_size": 128_320,
                "max_position_embeddings": 8192,
                "rope_theta": 500_000.0,
            },
            "text_encoder_2": {
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 12,
                "num_attention_heads": 12,
                "vocab_size": 49_408,
            },
            "image_encoder": {
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_hidden_layers": image_layers,
                "num_attention_heads": 16,
                "image_size": 384,
            },
            "vae": {
                "block_out_channels": [128, 256, 512, 512],
                "layers_per_block": 2,
                "norm_num_groups": 32,
            },
        },
    )


TINY = _preset(
    "random weights, 2 + 2 blocks of 2 x 16, 32 to 96 pixels a side; for the tests",
    axes(tokens=(1, 2, 6), text_tokens=(1, 12, 256), tile_frames=(1, 5, 5)),
    "float32",
    {
        "transformer": {
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 2,
            "num_single_layers": 2,
            "num_refiner_layers": 1,
            "text_embed_dim": 32,
            "pooled_projection_dim": 24,
            "image_proj_dim": 40,
            "rope_axes_dim": [4, 6, 6],
            "rope_theta": 256.0,
        },
        "text_encoder": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 768,
            "max_position_embeddings": 1024,
            "rope_theta": 500_000.0,
        },
        "text_encoder_2": {
            "hidden_size": 24,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "vocab_size": 514,
        },
        "image_encoder": {
            "hidden_size": 40,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 56,
        },
        "vae": {"block_out_channels": [8, 16, 32, 32], "layers_per_block": 1, "norm_num_groups": 8},
    },
)
DEMO_CONFIGS = _configs(
    {
        "transformer": {
            "num_attention_heads": 4,
            "attention_head_dim": 24,
            "num_layers": 2,
            "num_single_layers": 4,
            "num_refiner_layers": 1,
            "mlp_ratio": 2.0,
            "text_embed_dim": 48,
            "pooled_projection_dim": 48,
            "image_proj_dim": 48,
            "rope_axes_dim": [8, 8, 8],
            "rope_theta": 256.0,
        },
        "text_encoder": {
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 640,
            "max_position_embeddings": 1024,
            "rope_theta": 500_000.0,
        },
        "text_encoder_2": {
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 672,
        },
        "image_encoder": {
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 56,
        },
        # With one group of channels, normalization does not remove a colour that fills the picture. The
        # latents of this VAE have a standard deviation of 1.
        "vae": {
            "block_out_channels": [8, 16, 32, 32],
            "layers_per_block": 1,
            "norm_num_groups": 1,
            "scaling_factor": 1.0,
        },
    }
)
"""Configurations of the checkpoint that `slipway train weights framepack_i2v` makes."""
DEMO = demo_preset(
    "framepack_i2v",
    "trained on coloured shapes that go on moving; 64 x 64 pixels, 1 to 4 sections, as it was trained for",
    axes(tokens=(1, 4, 4), text_tokens=(1, 12, 256), tile_frames=(1, 5, 5)),
    configs=DEMO_CONFIGS,
)
PRESETS = {
    "tiny": TINY,
    "demo": DEMO,
    "public": _public(
        "random weights at the sizes of FramePackI2V_HY and its encoders; 42.8 GB on disk", 20, 40, 32, 27
    ),
    "public-6-blocks": _public(
        "public with 2 + 4 of its 20 + 40 blocks, 4 of LLaMA's 32 layers, 2 of SigLIP's 27; 7.4 GB on disk",
        2,
        4,
        4,
        2,
    ),
}
