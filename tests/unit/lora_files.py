"""LoRA files of small networks, in each of the public key layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from slipway_export.checkpoint.lora.names import original_name

RANK = 3
PAIR = {"diffusers": "AB", "peft": "AB", "comfy": "du", "kohya": "du", "lightx2v": "du"}


def key_of(layout: str, network: str) -> Callable[[str], str]:
    """Return the function that gives a module's name in a layout."""
    original = lambda module: original_name(network, module) or module  # noqa: E731
    return {
        "diffusers": lambda module: f"transformer.{module}",
        "peft": lambda module: f"base_model.model.{module}",
        "comfy": lambda module: f"diffusion_model.{original(module)}",
        "kohya": lambda module: f"lora_unet_{original(module).replace('.', '_')}",
        "lightx2v": lambda module: f"diffusion_model.{original(module)}",
    }[layout]


def linear_modules(network: torch.nn.Module, within: str = "") -> dict[str, torch.nn.Linear]:
    """Return the linear modules below a path, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith(within)
    }


def factors(module: torch.nn.Linear, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random factors of a module, down and up."""
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(RANK, module.in_features, generator=generator) / module.in_features**0.5
    return down, torch.randn(module.out_features, RANK, generator=generator) * 0.1


def write_lora(
    path: Path,
    network: torch.nn.Module,
    layout: str,
    seed: int = 0,
    *,
    alpha: float | None = None,
    modules: Sequence[str] | None = None,
    biases: bool = False,
) -> Path:
    """Write a LoRA of a network's blocks; return its path.

    Args:
        path: Path of the file.
        network: Network in diffusers' names.
        layout: Key of :data:`PAIR`.
        seed: Seed of the factors.
        alpha: Alpha of every module, in the way of the layout; None for the rank.
        modules: Names of the modules; by default all linear ones of the blocks.
        biases: True for changes of the biases too, as lightx2v's files have them.
    """
    name = key_of(layout, type(network).__name__)
    down_name, up_name = ("lora_A", "lora_B") if PAIR[layout] == "AB" else ("lora_down", "lora_up")
    linear = linear_modules(network)
    tensors: dict[str, torch.Tensor] = {}
    for number, module in enumerate(modules or [m for m in linear if m.startswith("blocks.")]):
        down, up = factors(linear[module], seed + number)
        tensors[f"{name(module)}.{down_name}.weight"] = down
        tensors[f"{name(module)}.{up_name}.weight"] = up
        if alpha is not None and PAIR[layout] == "du":
            tensors[f"{name(module)}.alpha"] = torch.tensor(float(alpha))
        if biases:
            tensors[f"{name(module)}.diff_b"] = torch.full((linear[module].out_features,), 0.01)
    config = {"r": RANK, "lora_alpha": alpha if alpha is not None else RANK, "use_dora": False}
    metadata = {"format": "pt"}
    if layout == "diffusers" and alpha is not None:
        packed = {f"transformer.{key}": value for key, value in config.items()}
        names = {module for module in modules or linear if module.startswith("blocks.")}
        packed["transformer.target_modules"] = sorted(names)
        metadata["lora_adapter_metadata"] = json.dumps(packed)
    if layout == "peft":
        (path.parent / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, path, metadata)
    return path
