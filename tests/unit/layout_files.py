"""Writers of the tiny checkpoint in other layouts, with the key names of the public files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipway_export.checkpoint.layouts.names import WAN_TRANSFORMER, WAN_UMT5, Names
from slipway_export.networks.wan_vae_file import source_of

FP8 = torch.float8_e4m3fn


def weights(checkpoint: Path, part: str) -> dict[str, Tensor]:
    """Return the tensors of a part of a checkpoint in diffusers' layout."""
    (file,) = (checkpoint / part).glob("*.safetensors")
    return load_file(file)


def renamed(tensors: Mapping[str, Tensor], names: Names) -> dict[str, Tensor]:
    """Return tensors under the names of a layout."""
    found = {names.to_file(key): tensor for key, tensor in tensors.items()}
    assert None not in found
    return {str(key): tensor.contiguous() for key, tensor in found.items()}


def vae_state(checkpoint: Path) -> dict[str, Tensor]:
    """Return the VAE's tensors under the authors' names."""
    vae = AutoencoderKLWan.from_pretrained(checkpoint / "vae")
    source = source_of(vae)
    return {source(key).key: tensor.clone() for key, tensor in vae.state_dict().items()}


def scaled(tensors: Mapping[str, Tensor], by_row: bool = False) -> dict[str, Tensor]:
    """Return tensors as ComfyUI's fp8_scaled files have them: the products' weights in fp8 with scales."""
    found: dict[str, Tensor] = {"scaled_fp8": torch.zeros(2, dtype=FP8)}
    for key, tensor in tensors.items():
        if not (key.startswith("blocks.") and key.endswith(".weight") and tensor.ndim == 2):
            found[key] = tensor.to(torch.float16)
            continue
        largest = tensor.abs().amax(1, keepdim=True) if by_row else tensor.abs().max()
        scale = largest / 448
        found[key] = (tensor / scale).to(FP8)
        found[key.removesuffix("weight") + "scale_weight"] = scale
        found[key.removesuffix("weight") + "scale_input"] = torch.tensor(1.0)
    return found


def descaled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of :func:`scaled` tensors by their keys, computed directly."""
    return {
        key: tensor.float() * tensors.get(key.removesuffix("weight") + "scale_weight", torch.tensor(1.0))
        for key, tensor in tensors.items()
        if key != "scaled_fp8" and "scale_" not in key.rpartition(".")[2].replace("scale_shift_table", "")
    }


def comfy_transformer(checkpoint: Path, file: Path, part: str = "transformer", prefix: str = "") -> Path:
    """Write a part's transformer as ComfyUI's single file."""
    state = renamed(weights(checkpoint, part), WAN_TRANSFORMER)
    save_file({prefix + key: tensor for key, tensor in state.items()}, file)
    return file


def original(checkpoint: Path, folder: Path) -> Path:
    """Write a checkpoint in Wan's original layout: a folder for each of two experts, or one for both."""
    index = json.loads((checkpoint / "model_index.json").read_text())
    image = {"WanImageToVideoPipeline": "i2v"}.get(index["_class_name"], "t2v")
    config = json.loads((checkpoint / "transformer/config.json").read_text())
    heads = config["num_attention_heads"]
    own: dict[str, Any] = {
        "_class_name": "WanModel", "dim": heads * config["attention_head_dim"],
        "eps": 1e-06, "ffn_dim": config["ffn_dim"], "freq_dim": config["freq_dim"],
        "in_dim": config["in_channels"], "model_type": "ti2v" if index.get("expand_timesteps") else image,
        "num_heads": heads, "num_layers": config["num_layers"], "out_dim": config["out_channels"],
        "text_len": 512,
    }  # fmt: skip
    experts = {"transformer": "high_noise_model", "transformer_2": "low_noise_model"}
    if not (checkpoint / "transformer_2").is_dir():
        experts = {"transformer": "."}
    for part, name in experts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(own))
        state = renamed(weights(checkpoint, part), WAN_TRANSFORMER)
        shards: tuple[dict[str, Tensor], ...] = ({}, {})
        for i, (key, tensor) in enumerate(state.items()):
            shards[i % 2][key] = tensor
        for i, shard in enumerate(shards, 1):
            save_file(shard, folder / name / f"diffusion_pytorch_model-{i:05}-of-00002.safetensors")
    encoder = {k: v for k, v in weights(checkpoint, "text_encoder").items() if "embed_tokens" not in k}
    torch.save(renamed(encoder, WAN_UMT5), folder / "models_t5_umt5-xxl-enc-bf16.pth")
    vae = "Wan2.2_VAE.pth" if own["model_type"] == "ti2v" else "Wan2.1_VAE.pth"
    torch.save(vae_state(checkpoint), folder / vae)
    shutil.copytree(checkpoint / "tokenizer", folder / "google/umt5-xxl")
    return folder


def gguf_file(path: Path, state: Mapping[str, Tensor], kind: str, arch: str = "wan") -> Path:
    """Write tensors as the public converters do: matrices in blocks, all others in float32.

    Args:
        path: Path of the file.
        state: Tensors by the file's keys; a matrix of bytes holds blocks already.
        kind: Type of the blocks, of `GGMLQuantizationType`.
        arch: Architecture that the file states.
    """
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    dtype = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[dtype][0]
    for key, tensor in state.items():
        if tensor.dtype == torch.uint8:
            writer.add_tensor(key, tensor.numpy(), raw_dtype=dtype)
            continue
        values = tensor.float().numpy()
        if values.ndim == 5:
            # Four dimensions are the most that llama.cpp knows, so the shape is in the metadata.
            writer.add_array(f"comfy.gguf.orig_shape.{key}", list(values.shape))
            values = values.reshape(values.shape[0], -1)
        if values.ndim == 2 and values.shape[-1] % block == 0 and kind != "F32":
            writer.add_tensor(key, gguf.quants.quantize(values, dtype), raw_dtype=dtype)
        else:
            writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantized(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the values of tensors as the package `gguf` reads them from :func:`gguf_file`."""
    import gguf

    dtype = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[dtype][0]
    found = {}
    for key, tensor in tensors.items():
        blocks = tensor
        if tensor.dtype != torch.uint8:
            flat = tensor.float().reshape(tensor.shape[0], -1) if tensor.ndim == 5 else tensor.float()
            if flat.ndim != 2 or flat.shape[-1] % block:
                found[key] = tensor.float()
                continue
            blocks = torch.from_numpy(gguf.quants.quantize(flat.numpy(), dtype))
        values = torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), dtype))
        found[key] = values if tensor.dtype == torch.uint8 else values.reshape(tensor.shape)
    return found


def k_quant_blocks(kind: str, rows: int, columns: int, deviation: float, seed: int) -> Tensor:
    """Return random blocks of a k-quant, [rows, bytes], whose values have this deviation.

    The package `gguf` reads k-quants and does not write them.
    """
    import gguf
    import numpy as np

    dtype = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[dtype]
    shape = (rows, columns // values, size)
    blocks = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    # Places of the two scales in half precision; the second one multiplies the least values.
    scales = {"Q4_K": {0: 1.0, 2: 7.5}, "Q5_K": {0: 1.0, 2: 15.5}, "Q6_K": {size - 2: 1.0}}[kind]
    factor = 1.0
    for _ in range(2):
        for place, ratio in scales.items():
            blocks[..., place : place + 2] = np.frombuffer(np.float16(ratio * factor).tobytes(), np.uint8)
        # The values are proportional to the scales.
        factor *= deviation / gguf.quants.dequantize(blocks.reshape(rows, -1), dtype).std()
    return torch.from_numpy(blocks.reshape(rows, -1))
