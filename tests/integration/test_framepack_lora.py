"""Exports of FramePack with LoRAs of HunyuanVideo, whose weights are those of diffusers' own merge."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.loaders import HunyuanVideoLoraLoaderMixin
from framepack_fixtures import AXES, small_checkpoint
from safetensors.torch import save_file

from slipway_export.checkpoint.lora.names import original_name
from slipway_export.checkpoint.lora.requests import LoraRequest, RequestedAdditions
from slipway_export.engines.torch_network import load
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Engine

pytestmark = pytest.mark.long

RANK, SCALE = 3, 0.7
Network = HunyuanVideoFramepackTransformer3DModel
# Original names of matrices that hold several modules of diffusers.
JOINED = {
    "double_blocks.0.img_attn_qkv": [f"transformer_blocks.0.attn.to_{n}" for n in "qkv"],
    "double_blocks.0.txt_attn_qkv": [f"transformer_blocks.0.attn.add_{n}_proj" for n in "qkv"],
}


def write_lora(file: Path, network: Network, layout: str) -> Path:
    """Write a LoRA of the blocks' matrices under diffusers' names or HunyuanVideo's own."""
    blocks = ("transformer_blocks.", "single_transformer_blocks.")
    linear = {
        name: (module.out_features, module.in_features)
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith(blocks)
    }
    names = {f"transformer.{name}": size for name, size in linear.items()}
    if layout == "original":
        # diffusers converts `linear1` of single blocks for the public width alone.
        own = {name: original_name(type(network).__name__, name) for name in linear}
        names = {
            f"diffusion_model.{other}": linear[name]
            for name, other in own.items()
            if other is not None and other.startswith("double_blocks.")
        }
        for name, parts in JOINED.items():
            rows = sum(linear[part][0] for part in parts)
            names[f"diffusion_model.{name}"] = (rows, linear[parts[0]][1])
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, (rows, columns) in names.items():
        tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator) / columns**0.5
        tensors[f"{name}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator) * 0.1
    assert len(names) >= 8
    save_file(tensors, file)
    return file


def fused(network: Network, file: Path) -> dict[str, torch.Tensor]:
    """Return the weights after diffusers' own merge."""
    state = HunyuanVideoLoraLoaderMixin.lora_state_dict(str(file.parent), weight_name=file.name)
    network.load_lora_adapter(state, prefix="transformer", adapter_name="style")
    network.fuse_lora(lora_scale=SCALE)
    network.unload_lora()
    found: dict[str, torch.Tensor] = network.state_dict()
    return found


@pytest.mark.parametrize("layout", ["original", "diffusers"])
def test_exported_weights_are_those_of_diffusers_when_framepack_has_a_lora(
    layout: str, shared: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="diffusers fuses LoRAs with peft")
    checkpoint = small_checkpoint(shared)
    network = Network.from_pretrained(checkpoint / "transformer")
    before = {key: value.clone() for key, value in network.state_dict().items()}
    file = write_lora(tmp_path / "lora.safetensors", network, layout)
    options = ExportOptions(
        str(checkpoint), tmp_path / "models", engine=Engine.TORCH, axes=AXES, components=("transformer",),
        verify_budget=1, additions=RequestedAdditions((LoraRequest(str(file), "transformer", SCALE),)),
    )  # fmt: skip
    assert all(row.max_abs == 0 for row in run_export(FAMILY, options).rows)
    placed = load(tmp_path / "models/framepack_i2v_transformer/1/network.json", "fp32").module
    found = placed.state_dict()
    wanted = fused(network, file)
    changed = 0
    for key, value in wanted.items():
        ours = found[f"transformer.{key}"]
        error = (ours - value).norm() / value.norm().clamp(min=1e-12)
        assert error < 1e-6, f"{key}: {error:.3g}"
        changed += not torch.equal(ours, before[key])
    assert changed >= 8
