"""Writes small random checkpoints of a mode, in the layout of the public ones.

That is the folder `Skywork/Matrix-Game-2.0` with the weights, and upstream's `configs` beside them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from slipway_export.modeling.causal_wan.config import BLOCK_FRAMES, read_config
from slipway_export.modeling.causal_wan.inference import MODES, inference_file
from slipway_export.modeling.causal_wan.network import CausalWan
from slipway_export.modeling.causal_wan.weights import PREFIX

_STEPS = {"templerun": [1000, 750, 500, 250]}
_WINDOWS = {"gta_drive": 4}
# Small enough that an export takes seconds; of odd and different numbers of tokens a side.
_LATENT_HEIGHT, _LATENT_WIDTH = 6, 10


def tiny_config(mode: str) -> dict[str, Any]:
    """Return the content of a small `config.json` of a mode, with upstream's keys."""
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


def write_denoiser(folder: Path, mode: str, seed: int, *, visual_dim: int = 160) -> None:
    """Write the network of a mode, its `config.json` and its inference YAML.

    Args:
        folder: an existing folder.
        mode: a name of `MODES`.
        seed: of the weights.
        visual_dim: width of the image encoder's features; 1280 in the public checkpoints.
    """
    place = f"configs/distilled_model/{mode}"
    content = tiny_config(mode)
    _write(folder / place / "config.json", json.dumps(content, indent=2, sort_keys=True) + "\n")
    _write(folder / inference_file(mode), yaml.safe_dump(_inference(mode, place), sort_keys=False))
    network = CausalWan(read_config(content, f"preset of {mode}"), visual_dim)
    randomize(network, seed)
    weights = folder / MODES[mode].weights
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_file({PREFIX + key: tensor for key, tensor in network.state_dict().items()}, weights)


def randomize(network: nn.Module, seed: int) -> None:
    """Give a network weights that each of its parts shows in the output with.

    Upstream's start is zero where the actions and the head are projected, and near zero in the modulation:
    a part that is lost would not be seen.

    Args:
        network: to change.
        seed: of the weights.
    """
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("bias"):
                mean, std = 0.0, 0.1
            elif "modulation" in name:
                mean, std = 0.0, 0.5
            elif weight.ndim == 1:
                mean, std = 1.0, 0.2
            else:
                mean, std = 0.0, math.prod(weight.shape[1:]) ** -0.5
            weight.normal_(mean, std, generator=random)


def _inference(mode: str, place: str) -> dict[str, Any]:
    return {
        "denoising_step_list": _STEPS.get(mode, [1000, 666, 333]),
        "warp_denoising_step": True,
        "ts_schedule": False,
        "mixed_precision": True,
        "seed": 42,
        "image_or_video_shape": [1, 16, 15, _LATENT_HEIGHT, _LATENT_WIDTH],
        "num_frame_per_block": BLOCK_FRAMES,
        "context_noise": 0,
        "mode": mode,
        "causal": True,
        "model_kwargs": {"timestep_shift": 5.0, "model_config": place},
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
