"""Merge of LoRAs while weights are read: equal to diffusers' fuse_lora, in every key layout."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel, WanPipeline, WanTransformer3DModel
from lora_files import PAIR, RANK, factors, linear_modules, write_lora
from safetensors.torch import load_file, save_file

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.lora.merge import MergedTensor
from slipway_export.checkpoint.lora.names import modules_by_name, original_name
from slipway_export.checkpoint.lora.requests import LoraRequest, RequestedAdditions
from slipway_export.checkpoint.on_demand_weights import read_on_demand
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.spec import Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

WAN = family_named("wan_t2v")
FRAMEPACK = family_named("framepack_i2v")


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Wan checkpoint with two experts."""
    folder = tmp_path_factory.mktemp("wan")
    WAN.presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture(scope="module")
def network(wan: Path) -> WanTransformer3DModel:
    """The checkpoint's expert for high noise, without any LoRA."""
    loaded: WanTransformer3DModel = WanTransformer3DModel.from_pretrained(wan / "transformer")
    return loaded


def opened(stack: ExitStack, source: Path, *loras: LoraRequest, family: Any = WAN) -> Checkpoint:
    return stack.enter_context(
        open_checkpoint(family, str(source), requested=RequestedAdditions(tuple(loras)))
    )


def read(checkpoint: Checkpoint, part: str = "transformer", kind: Any = WanTransformer3DModel) -> Any:
    return checkpoint.load(part, kind, Precision.FP32, Loading.READ).state_dict()


def merged_by_diffusers(wan: Path, files: dict[Path, float]) -> dict[str, torch.Tensor]:
    transformer = WanTransformer3DModel.from_pretrained(wan / "transformer")
    pipeline = WanPipeline(
        tokenizer=None, text_encoder=None, vae=None, scheduler=None, transformer=transformer
    )
    names = [f"lora_{number}" for number in range(len(files))]
    for name, file in zip(names, files, strict=True):
        pipeline.load_lora_weights(file.parent, weight_name=file.name, adapter_name=name)
    pipeline.set_adapters(names, list(files.values()))
    pipeline.fuse_lora(components=["transformer"], adapter_names=names)
    pipeline.unload_lora_weights()
    merged: dict[str, torch.Tensor] = pipeline.transformer.state_dict()
    return merged


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for key, expected in theirs.items():
        error = (ours[key] - expected).norm() / expected.norm().clamp(min=1e-12)
        assert error < 1e-6, f"{key}: {error:.3g}"


@pytest.mark.parametrize("layout", ["diffusers", "comfy", "kohya", "lightx2v"])
def test_merge_equals_fuse_lora_of_diffusers_in_each_layout(
    wan: Path, network: WanTransformer3DModel, tmp_path: Path, layout: str
) -> None:
    pytest.importorskip("peft", reason="diffusers fuses LoRAs with peft")
    file = write_lora(tmp_path / "lora.safetensors", network, layout, alpha=5.0, biases=layout == "lightx2v")
    with ExitStack() as stack:
        ours = read(opened(stack, wan, LoraRequest(str(file), "denoiser_high", 0.7)))
    theirs = merged_by_diffusers(wan, {file: 0.7})
    assert_equal(ours, theirs)
    changed = {key for key, value in network.state_dict().items() if not torch.equal(value, ours[key])}
    linear = [name for name in linear_modules(network) if name.startswith("blocks.")]
    kinds = ("weight", "bias") if layout == "lightx2v" else ("weight",)
    assert changed == {f"{name}.{kind}" for name in linear for kind in kinds}


def test_two_loras_with_scales_equal_fuse_lora_of_diffusers(
    wan: Path, network: WanTransformer3DModel, tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="diffusers fuses LoRAs with peft")
    one = write_lora(tmp_path / "one.safetensors", network, "kohya", seed=1, alpha=1.5)
    two = write_lora(tmp_path / "two.safetensors", network, "diffusers", seed=900)
    with ExitStack() as stack:
        requests = (LoraRequest(str(one), "transformer", 0.5), LoraRequest(str(two), "denoiser_high", -1.25))
        ours = read(opened(stack, wan, *requests))
    assert_equal(ours, merged_by_diffusers(wan, {one: 0.5, two: -1.25}))


@pytest.mark.parametrize("layout", sorted(PAIR))
def test_merge_adds_the_scaled_product_in_each_layout(
    wan: Path, network: WanTransformer3DModel, tmp_path: Path, layout: str
) -> None:
    name = "adapter_model.safetensors" if layout == "peft" else "lora.safetensors"
    file = write_lora(tmp_path / name, network, layout, alpha=6.0, modules=["blocks.1.attn2.to_out.0"])
    source = tmp_path if layout == "peft" else file
    with ExitStack() as stack:
        checkpoint = opened(stack, wan, LoraRequest(str(source), "denoiser_low", 0.5))
        high, low = read(checkpoint), read(checkpoint, "transformer_2")
    down, up = factors(linear_modules(network)["blocks.1.attn2.to_out.0"], 0)
    before = load_file(wan / "transformer_2/diffusion_pytorch_model.safetensors")
    key = "blocks.1.attn2.to_out.0.weight"
    assert torch.allclose(low[key], before[key] + 0.5 * 6.0 / RANK * up @ down, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(value, low[other]) for other, value in before.items() if other != key)
    assert all(torch.equal(value, high[other]) for other, value in network.state_dict().items())


def test_norms_and_modulation_change_when_lightx2v_stores_their_difference(
    wan: Path, network: WanTransformer3DModel, tmp_path: Path
) -> None:
    state = network.state_dict()
    targets = {
        "diffusion_model.blocks.0.diff_m": "blocks.0.scale_shift_table",
        "diffusion_model.blocks.1.norm3.diff": "blocks.1.norm2.weight",
        "diffusion_model.blocks.1.norm3.diff_b": "blocks.1.norm2.bias",
        "diffusion_model.blocks.0.self_attn.norm_q.diff": "blocks.0.attn1.norm_q.weight",
        "diffusion_model.head.head.diff": "proj_out.weight",
        "diffusion_model.time_projection.1.diff_b": "condition_embedder.time_proj.bias",
    }
    tensors = {key: torch.full_like(state[target], 0.25) for key, target in targets.items()}
    file = write_lora(tmp_path / "lora.safetensors", network, "lightx2v", modules=["blocks.0.attn1.to_q"])
    save_file(load_file(file) | tensors, file)
    with ExitStack() as stack:
        ours = read(opened(stack, wan, LoraRequest(str(file), "denoiser_high", 2.0)))
    for target in targets.values():
        assert torch.allclose(ours[target], state[target] + 0.5)


def test_rows_read_alone_equal_those_of_the_whole(
    wan: Path, network: WanTransformer3DModel, tmp_path: Path
) -> None:
    file = write_lora(tmp_path / "lora.safetensors", network, "comfy")
    with ExitStack() as stack:
        checkpoint = opened(stack, wan, LoraRequest(str(file), "denoiser_high"))
        module = checkpoint.load("transformer", WanTransformer3DModel, Precision.FP32, Loading.ON_DISK)
        from slipway_export.checkpoint.stored_weights import stored_weights

        stored = stored_weights(module)["blocks.0.ffn.net.0.proj.weight"]
        assert isinstance(stored, MergedTensor)
        assert torch.allclose(stored.read(2, 5), stored.read()[2:5], rtol=1e-6, atol=1e-8)
        on_demand = read_on_demand(module, torch.device("cpu")).state_dict()
        key = "blocks.0.ffn.net.0.proj.weight"
        assert torch.equal(on_demand[key] + 0, read(checkpoint)[key])


def test_parts_of_a_joined_matrix_change_hunyuan_weights_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "framepack"
    folder.mkdir()
    FRAMEPACK.presets["tiny"].write(folder, 0)
    network = HunyuanVideoFramepackTransformer3DModel.from_pretrained(folder / "transformer")
    state = network.state_dict()
    joined = {
        "double_blocks_0_img_attn_qkv": [f"transformer_blocks.0.attn.to_{n}" for n in "qkv"],
        "double_blocks_0_txt_attn_qkv": [f"transformer_blocks.0.attn.add_{n}_proj" for n in "qkv"],
        "single_blocks_0_linear1": [
            *(f"single_transformer_blocks.0.attn.to_{n}" for n in "qkv"),
            "single_transformer_blocks.0.proj_mlp",
        ],
        "double_blocks_0_img_mlp_fc1": ["transformer_blocks.0.ff.net.0.proj"],
        "single_blocks_0_linear2": ["single_transformer_blocks.0.proj_out"],
    }
    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for name, modules in joined.items():
        weights = [state[f"{module}.weight"] for module in modules]
        down = torch.randn(RANK, weights[0].shape[1], generator=generator)
        ups = [torch.randn(len(weight), RANK, generator=generator) for weight in weights]
        tensors |= {
            f"lora_unet_{name}.lora_down.weight": down,
            f"lora_unet_{name}.lora_up.weight": torch.cat(ups),
        }
        expected |= {f"{m}.weight": w + u @ down for m, w, u in zip(modules, weights, ups, strict=True)}
    half = state["norm_out.linear.weight"].shape[0] // 2
    swapped = torch.randn(state["norm_out.linear.weight"].shape, generator=generator)
    tensors["diffusion_model.final_layer.adaLN_modulation.1.diff"] = swapped
    expected["norm_out.linear.weight"] = state["norm_out.linear.weight"] + torch.cat(
        [swapped[half:], swapped[:half]]
    )
    save_file(tensors, tmp_path / "lora.safetensors")
    with ExitStack() as stack:
        checkpoint = opened(stack, folder, LoraRequest(str(tmp_path / "lora.safetensors")), family=FRAMEPACK)
        ours = read(checkpoint, kind=HunyuanVideoFramepackTransformer3DModel)
    for key, value in state.items():
        assert torch.allclose(ours[key], expected.get(key, value), rtol=1e-5, atol=1e-6), key
    assert sum(not torch.equal(ours[key], value) for key, value in state.items()) == len(expected)


@pytest.mark.parametrize("family", [WAN, FRAMEPACK])
def test_every_original_name_leads_back_to_its_module(family: Any, tmp_path: Path) -> None:
    family.presets["tiny"].write(tmp_path, 0)
    kind = WanTransformer3DModel if family is WAN else HunyuanVideoFramepackTransformer3DModel
    network = kind.from_pretrained(tmp_path / "transformer")
    rows = {
        key.removesuffix(".weight").removesuffix(".bias"): len(value)
        for key, value in network.state_dict().items()
        if value.ndim
    }
    meanings = modules_by_name(kind.__name__, rows)
    for module in rows:
        assert [meaning.module for meaning in meanings[module]] == [module]
        if (name := original_name(kind.__name__, module)) is not None:
            assert [each.module for each in meanings[name]] == [module]
            assert [each.module for each in meanings[name.replace(".", "_")]] == [module]
    if family is WAN:
        unnamed = {module for module in rows if original_name(kind.__name__, module) is None}
        assert not unnamed


def save_lora(file: Path, network: WanTransformer3DModel, **tensors: torch.Tensor) -> Path:
    write_lora(file, network, "diffusers", modules=["blocks.0.attn1.to_q"])
    save_file(load_file(file) | tensors, file)
    return file


@pytest.mark.parametrize(
    ("key", "shape", "message"),
    [
        ("transformer.blocks.0.attn1.to_q.lora_magnitude_vector", (4,), "must be a LoRA, got DoRA"),
        ("diffusion_model.blocks.0.self_attn.k.dora_scale", (4, 1), "must be a LoRA, got DoRA"),
        ("lora_unet_blocks_0_ffn_0.hada_w1_a", (4, 4), "got LoHa"),
        ("lora_unet_blocks_0_ffn_0.lokr_w1", (4, 4), "got LoKr"),
        (
            "diffusion_model.blocks.0.cross_attn.k_img.lora_down.weight",
            (3, 4),
            "modules only, got diffusion_",
        ),
        (
            "diffusion_model.blocks.99.ffn.0.lora_down.weight",
            (3, 4),
            "modules only, got diffusion_model.blocks",
        ),
        ("transformer.blocks.0.attn1.to_k.lora_A.weight", (3, 4), "both factors"),
        ("transformer.blocks.0.attn1.to_q.diff", (3, 4), "must have shape"),
        ("base_model.model.blocks.0.attn1.to_q.lora_A.weight", (3, 4), "must have one down for each module"),
    ],
)
def test_lora_is_refused_when_something_of_it_cannot_be_merged(
    wan: Path,
    network: WanTransformer3DModel,
    tmp_path: Path,
    key: str,
    shape: tuple[int, ...],
    message: str,
) -> None:
    file = save_lora(tmp_path / "lora.safetensors", network, **{key: torch.ones(shape)})
    with ExitStack() as stack, pytest.raises(InvalidRequest, match=message):
        read(opened(stack, wan, LoraRequest(str(file), "denoiser_high")))
