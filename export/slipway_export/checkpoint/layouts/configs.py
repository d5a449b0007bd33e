"""Configurations that follow from the shapes of a network's tensors, for files that have none beside them.

The width of a head does not follow from shapes: every public transformer of Wan has 128. A configuration
beside the file, or in the checkpoint that the file is a part of, may state another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slipway_serving.protocol.errors import InvalidRequest

Shapes = Mapping[str, tuple[int, ...]]

_HEAD_WIDTH = 128
# Keys of networks that derive from Wan's, with the name of each.
_OTHERS = {
    "vace_blocks.0.after_proj.weight": "VACE",
    "vace_blocks.0.proj_out.weight": "VACE",
    "motion_encoder.dec.direction.weight": "Wan-Animate",
    "casual_audio_encoder.encoder.final_linear.weight": "Wan-S2V",
    "audio_proj.proj1.weight": "InfiniteTalk or MultiTalk",
    "control_adapter.conv.weight": "Wan-Fun with camera control",
    "ref_conv.weight": "Wan-Fun with reference pictures",
}


def other_network(keys: Mapping[str, Any]) -> str | None:
    """Return the name of a network that derives from Wan's and is not read; None for all others."""
    endings = (key.removeprefix("model.diffusion_model.") for key in keys)
    return next((_OTHERS[key] for key in endings if key in _OTHERS), None)


def transformer_config(shapes: Shapes, where: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a `WanTransformer3DModel`.

    Args:
        shapes: Shapes by diffusers' keys.
        where: Name of the file in messages.
        stated: Configuration beside the file or of the checkpoint, by diffusers' names or by Wan's own.

    Raises:
        InvalidRequest: A tensor that decides is missing, or the width is no multiple of 128.
    """
    width, channels, *patch = _shape(shapes, "patch_embedding.weight", 5, where)
    heads, head_width = _heads(width, stated, where)
    embedder = "condition_embedder"
    config: dict[str, Any] = {
        "_class_name": "WanTransformer3DModel",
        "patch_size": patch,
        "in_channels": channels,
        "out_channels": _shape(shapes, "proj_out.weight", 2, where)[0] // (patch[0] * patch[1] * patch[2]),
        "attention_head_dim": head_width,
        "num_attention_heads": heads,
        "text_dim": _shape(shapes, f"{embedder}.text_embedder.linear_1.weight", 2, where)[1],
        "freq_dim": _shape(shapes, f"{embedder}.time_embedder.linear_1.weight", 2, where)[1],
        "ffn_dim": _shape(shapes, "blocks.0.ffn.net.0.proj.weight", 2, where)[0],
        "num_layers": _count(shapes, r"blocks\.(\d+)\."),
        "cross_attn_norm": "blocks.0.norm2.weight" in shapes,
        "qk_norm": "rms_norm_across_heads",
        "eps": 1e-6,
        "image_dim": None,
        "added_kv_proj_dim": None,
        "pos_embed_seq_len": None,
        "rope_max_seq_len": 1024,
    }
    if "blocks.0.attn2.add_k_proj.weight" in shapes:
        config["image_dim"] = _shape(shapes, f"{embedder}.image_embedder.norm1.weight", 1, where)[0]
        config["added_kv_proj_dim"] = _shape(shapes, "blocks.0.attn2.add_k_proj.weight", 2, where)[1]
        if (position := f"{embedder}.image_embedder.pos_embed") in shapes:
            config["pos_embed_seq_len"] = shapes[position][1]
    return config


def umt5_config(shapes: Shapes, where: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a `UMT5EncoderModel`; arguments and errors as for the transformer."""
    attention = "encoder.block.0.layer.0.SelfAttention"
    buckets, heads = _shape(shapes, f"{attention}.relative_attention_bias.weight", 2, where)
    words, width = _shape(shapes, "shared.weight", 2, where)
    wide = _shape(shapes, "encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 2, where)[0]
    return {
        "architectures": ["UMT5EncoderModel"],
        "model_type": "umt5",
        "vocab_size": words,
        "d_model": width,
        "d_kv": _shape(shapes, f"{attention}.q.weight", 2, where)[0] // heads,
        "d_ff": wide,
        "num_heads": heads,
        "num_layers": _count(shapes, r"encoder\.block\.(\d+)\."),
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu",
        "layer_norm_epsilon": 1e-6,
        "is_encoder_decoder": True,
        "tie_word_embeddings": False,
    }


def vae_config(shapes: Shapes, where: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of an `AutoencoderKLWan`, from the shapes by the file's keys."""
    from slipway_export.networks.wan_vae_file import config_of_shapes, scale_of_latents

    config = config_of_shapes(shapes, where)
    return {
        "_class_name": "AutoencoderKLWan",
        **config,
        **scale_of_latents(config["z_dim"], where, stated),
    }


def vae_names(shapes: Shapes) -> Any:
    """Return the function from the keys of a VAE's file to diffusers' keys, which returns None for others."""
    import torch
    from diffusers import AutoencoderKLWan

    from slipway_export.networks.wan_vae_file import config_of_shapes, source_of

    with torch.device("meta"):
        vae = AutoencoderKLWan.from_config(config_of_shapes(shapes, "VAE"))
    source = source_of(vae)
    return {source(key).key: key for key in vae.state_dict()}.get


def _heads(width: int, stated: Mapping[str, Any], where: str) -> tuple[int, int]:
    """Return the number of heads and their width, which shapes leave open."""
    heads = stated.get("num_heads") or stated.get("num_attention_heads") or 0
    known = stated.get("dim") or heads * (stated.get("attention_head_dim") or 0)
    if heads and known == width:
        return heads, width // heads
    if width % _HEAD_WIDTH:
        raise InvalidRequest(
            f"{where} must have a width that is a multiple of {_HEAD_WIDTH}, or a config.json beside it that"
            f" states its heads, got width {width}"
        )
    return width // _HEAD_WIDTH, _HEAD_WIDTH


def _shape(shapes: Shapes, key: str, dimensions: int, where: str) -> tuple[int, ...]:
    shape = shapes.get(key)
    if shape is None or len(shape) != dimensions or 0 in shape:
        got = "none" if shape is None else list(shape)
        raise InvalidRequest(f"{where}: {key} must be a tensor of {dimensions} dimensions, got {got}")
    return shape


def _count(shapes: Shapes, pattern: str) -> int:
    numbers = (int(found[1]) for key in shapes if (found := re.match(pattern, key)))
    return max(numbers, default=-1) + 1
