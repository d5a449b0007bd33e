"""Writer of random checkpoints of a mode, in the layout of the public ones.

The public layout is the folder `Skywork/Matrix-Game-2.0` with upstream's `configs` beside the weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from slipway_export.checkpoint.random_weights import Normal, RandomPart, check_space, write_part
from slipway_export.families.matrix_game.causal_wan.config import read_config
from slipway_export.families.matrix_game.causal_wan.inference import MODES, inference_file
from slipway_export.families.matrix_game.causal_wan.network import CausalWan
from slipway_export.families.matrix_game.causal_wan.tiny import (
    config_folder,
    public_config,
    public_inference,
    tiny_config,
    tiny_inference,
)
from slipway_export.families.matrix_game.causal_wan.weights import PREFIX


def write_denoiser(
    folder: Path,
    mode: str,
    seed: int,
    *,
    visual_dim: int = 160,
    content: Mapping[str, Any] | None = None,
    inference: Mapping[str, Any] | None = None,
) -> None:
    """Write the network of a mode, its `config.json` and its inference YAML.

    Args:
        folder: Folder of the checkpoint; it must exist.
        mode: Name from `MODES`.
        seed: Seed of the weights.
        visual_dim: Width of the image encoder's features; 1280 in the public checkpoints.
        content: Content of `config.json`; None for that of the preset `tiny`.
        inference: Content of the inference YAML; None for that of the preset `tiny`.

    Raises:
        InvalidRequest: No network can be built from the content.
    """
    content = dict(content or tiny_config(mode))
    inference = dict(inference or tiny_inference(mode))
    _write(folder / config_folder(mode) / "config.json", json.dumps(content, indent=2, sort_keys=True) + "\n")
    _write(folder / inference_file(mode), yaml.safe_dump(inference, sort_keys=False))
    network = CausalWan(read_config(content, f"preset of {mode}"), visual_dim)
    randomize(network, seed)
    weights = folder / MODES[mode].weights
    weights.parent.mkdir(parents=True, exist_ok=True)
    save_file({PREFIX + key: tensor for key, tensor in network.state_dict().items()}, weights)


def stream_denoiser(folder: Path, mode: str, seed: int | None) -> None:
    """Write the network of a mode at its public size in bfloat16, a piece of a tensor at a time.

    Args:
        folder: Folder of the checkpoint; it must exist.
        mode: Name from `MODES`.
        seed: Seed of the weights; None writes a weight file without content.

    Raises:
        InvalidRequest: The disk has too little free space.
    """
    content, weights = public_config(mode), Path(MODES[mode].weights)
    with torch.device("meta"):
        network = CausalWan(read_config(content, f"preset of {mode}")).to(torch.bfloat16)
    named = nn.ModuleDict({PREFIX.removesuffix("."): network})
    rules = (("*modulation", Normal(std=0.5)),)
    part = RandomPart(str(weights.parent), named, weights.stem, rules)
    if seed is not None:
        check_space(folder, [part])
    _write(folder / config_folder(mode) / "config.json", json.dumps(content, indent=2, sort_keys=True) + "\n")
    _write(folder / inference_file(mode), yaml.safe_dump(public_inference(mode), sort_keys=False))
    write_part(folder, part, seed, shard_bytes=2 * part.bytes)


def randomize(network: nn.Module, seed: int) -> None:
    """Give a network random weights with which each of its parts affects the output.

    Upstream initializes the projections of the actions and of the head with zeros, and the modulation near
    zero; with these weights no test would notice a missing part.

    Args:
        network: Network that is changed in place.
        seed: Seed of the weights.
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


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
