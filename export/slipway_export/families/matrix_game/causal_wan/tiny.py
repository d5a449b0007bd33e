"""Configurations of random checkpoints, small or of the public sizes, under upstream's keys."""

from __future__ import annotations

import json
from typing import Any

import yaml

from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES
from slipway_export.families.matrix_game.causal_wan.inference import MODES, inference_file

_STEPS = {"templerun": [1000, 750, 500, 250]}
_WINDOWS = {"gta_drive": 4}
# Small enough that an export takes seconds; the numbers of tokens per side are odd and differ.
_LATENTS = (6, 10)
_PUBLIC_LATENTS = (44, 80)


def config_folder(mode: str) -> str:
    """Return upstream's folder of a mode's `config.json`."""
    return f"configs/distilled_model/{mode}"


def tiny_config(mode: str) -> dict[str, Any]:
    """Return the content of a small `config.json` of a mode, under upstream's keys."""
    dim, heads = 96, 2
    known = MODES[mode]
    rotary = [8, 28, 28]
    action = {
        "blocks": [0, 1],
        "enable_keyboard": True,
        "enable_mouse": known.mouse,
        "heads_num": heads,
        "hidden_size": 16,
        "img_hidden_size": dim,
        "keyboard_dim_in": known.keyboard,
        "keyboard_hidden_dim": heads * sum(rotary),
        "patch_size": [1, 2, 2],
        "qk_norm": True,
        "qkv_bias": False,
        "rope_dim_list": rotary,
        "rope_theta": 256,
        "vae_time_compression_ratio": 4,
        "windows_size": 3,
    }
    if known.mouse:
        action |= {
            "mouse_dim_in": 2,
            "mouse_hidden_dim": heads * sum(rotary),
            "mouse_qk_dim_list": rotary,
        }
    return {
        "_class_name": "CausalWanModel",
        "_diffusers_version": "0.35.0.dev0",
        "action_config": action,
        "dim": dim,
        "eps": 1e-06,
        "ffn_dim": 128,
        "freq_dim": 32,
        "in_dim": 36,
        "inject_sample_info": False,
        "local_attn_size": _WINDOWS.get(mode, 6),
        "model_type": "i2v",
        "num_heads": heads,
        "num_layers": 3,
        "out_dim": 16,
        "sink_size": 0,
        "text_len": 512,
    }


def demo_config(mode: str) -> dict[str, Any]:
    """Return the content of a `config.json` of a mode, with the sizes of the trained checkpoint `demo`."""
    # A token has 64 numbers of noise and 64 of the picture; a narrower network cannot represent both.
    dim = 128
    content = tiny_config(mode)
    content |= {"dim": dim, "ffn_dim": 384, "freq_dim": 64, "num_heads": 4, "num_layers": 3}
    content["action_config"] |= {"blocks": [0], "img_hidden_size": dim}
    return content


def public_config(mode: str) -> dict[str, Any]:
    """Return the content of a `config.json` of a mode, with the sizes of the public one."""
    dim, width = 1536, 1024
    content = tiny_config(mode)
    content |= {"dim": dim, "ffn_dim": 8960, "freq_dim": 256, "num_heads": 12, "num_layers": 30}
    sizes = {"blocks": list(range(15)), "heads_num": 16, "hidden_size": 128, "img_hidden_size": dim}
    widths = {
        name: width
        for name in ("keyboard_hidden_dim", "mouse_hidden_dim")
        if name in content["action_config"]
    }
    content["action_config"] |= sizes | widths
    return content


def public_inference(mode: str) -> dict[str, Any]:
    """Return the content of a mode's inference YAML, with latents of the public size."""
    return _inference(mode, _PUBLIC_LATENTS)


def public_files(mode: str) -> tuple[str, str]:
    """Return the paths of a mode's configurations, which upstream keeps apart from the weights."""
    return inference_file(mode), f"{config_folder(mode)}/config.json"


def public_file(mode: str, file: str) -> bytes:
    """Return the content of a file of :func:`public_files`."""
    content = public_inference(mode) if file == inference_file(mode) else public_config(mode)
    if file.endswith(".json"):
        return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
    return yaml.safe_dump(content, sort_keys=False).encode()


def tiny_inference(mode: str) -> dict[str, Any]:
    """Return the content of a mode's inference YAML, with small latents."""
    return _inference(mode, _LATENTS)


def _inference(mode: str, latents: tuple[int, int]) -> dict[str, Any]:
    """Return the content of a mode's inference YAML."""
    return {
        "denoising_step_list": _STEPS.get(mode, [1000, 666, 333]),
        "warp_denoising_step": True,
        "ts_schedule": False,
        "mixed_precision": True,
        "seed": 42,
        "image_or_video_shape": [1, 16, 15, *latents],
        "num_frame_per_block": BLOCK_FRAMES,
        "context_noise": 0,
        "mode": mode,
        "causal": True,
        "model_kwargs": {"timestep_shift": 5.0, "model_config": config_folder(mode)},
    }
