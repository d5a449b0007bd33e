"""Other layouts of a checkpoint, read in place: every tensor equals that of diffusers' layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import layout_files as files
import pytest
import torch
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.layouts.chosen_files import layouts_of
from slipway_export.checkpoint.layouts.names import GGUF_UMT5, WAN_TRANSFORMER, WAN_UMT5, Names
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.torch_model import stage_network
from slipway_export.engines.torch_network import NetworkFacts, load
from slipway_export.families import family_named
from slipway_export.spec import Component, Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.torch_engine.network_description import network_file

WAN = family_named("wan_t2v")
PARTS = ("transformer", "transformer_2", "text_encoder", "vae")


def component_of(checkpoint: Checkpoint, label: str) -> Component:
    plan = WAN.plan(checkpoint, axes_of(WAN, checkpoint, {}))
    return next(component for component in plan.components if component.label == label)


def read(checkpoint: Checkpoint, part: str) -> dict[str, Tensor]:
    return {key: tensor.read() for key, tensor in checkpoint.stored(part).items()}


def load_everyway(checkpoint: Checkpoint, label: str) -> torch.nn.Module:
    component = component_of(checkpoint, label)
    for loading in (Loading.ON_DISK, Loading.META):
        component.load(Precision.FP32, loading)
    return component.load(Precision.FP32, Loading.READ)


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert torch.equal(found[key].float(), tensor.float()), key


@pytest.mark.parametrize("names", [WAN_TRANSFORMER, WAN_UMT5, GGUF_UMT5])
def test_names_return_to_themselves_when_they_are_translated_both_ways(
    names: Names, checkpoint: Path
) -> None:
    part = "transformer" if names is WAN_TRANSFORMER else "text_encoder"
    keys = [key for key in files.weights(checkpoint, part) if "embed_tokens" not in key]
    translated = [names.to_file(key) for key in keys]
    assert len({*translated}) == len(keys)
    assert [names.to_library(str(key)) for key in translated] == keys
    for library, file in names.pairs:
        # A pattern of its own in both directions, also for networks that the tiny checkpoint lacks.
        key = library.replace("*", "3") + ".weight"
        assert names.to_library(str(names.to_file(key))) == key
        assert names.to_file(str(names.to_library(file.replace("*", "3")))) == file.replace("*", "3")


def test_names_are_those_of_diffusers_own_converter(checkpoint: Path) -> None:
    state = files.renamed(files.weights(checkpoint, "transformer"), WAN_TRANSFORMER)
    pictures = {f"blocks.0.cross_attn.{n}.weight": torch.zeros(1) for n in ("k_img", "v_img", "norm_k_img")}
    state |= pictures | {f"img_emb.proj.{i}.weight": torch.zeros(1) for i in (0, 1, 3, 4)}
    theirs = convert_wan_transformer_to_diffusers(dict(state))
    assert {WAN_TRANSFORMER.to_library(key) for key in state} == theirs.keys()


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_transformer_is_the_same_when_it_is_a_single_file(
    prefix: str, checkpoint: Path, tmp_path: Path
) -> None:
    file = files.comfy_transformer(checkpoint, tmp_path / "wan.safetensors", prefix=prefix)
    with open_checkpoint(WAN, str(checkpoint), {"transformer": str(file)}) as opened:
        assert_same(read(opened, "transformer"), files.weights(checkpoint, "transformer"))
        stated = json.loads((checkpoint / "transformer/config.json").read_text())
        assert {
            k: v for k, v in opened.config("transformer/config.json").items() if not k.startswith("_")
        } == {key: value for key, value in stated.items() if not key.startswith("_")}
        loaded = component_of(opened, "denoiser_high").load(Precision.BF16, Loading.READ)
    with open_checkpoint(WAN, str(checkpoint)) as opened:
        wanted = component_of(opened, "denoiser_high").load(Precision.BF16, Loading.READ)
    pairs = zip(loaded.named_parameters(), wanted.named_parameters(), strict=True)
    assert all(a == b and x.dtype == y.dtype and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("by_row", [False, True])
def test_scales_are_applied_when_weights_are_fp8(by_row: bool, checkpoint: Path, tmp_path: Path) -> None:
    state = files.scaled(files.renamed(files.weights(checkpoint, "transformer"), WAN_TRANSFORMER), by_row)
    save_file(state, file := tmp_path / "wan_fp8_scaled.safetensors")
    wanted = {str(WAN_TRANSFORMER.to_library(k)): v for k, v in files.descaled(state).items()}
    with open_checkpoint(WAN, str(checkpoint), {"transformer": str(file)}) as opened:
        assert_same(read(opened, "transformer"), wanted)
        tensor = opened.stored("transformer")["blocks.0.ffn.net.0.proj.weight"]
        assert torch.equal(tensor.read(3, 7), tensor.read()[3:7])
        indices = torch.tensor([[5, 1], [0, 5]])
        assert torch.equal(tensor.rows(indices), tensor.read()[indices])
        assert tensor.disk_bytes * 4 == tensor.bytes
        loaded = load_everyway(opened, "denoiser_high")
        assert any(torch.equal(each, wanted["proj_out.weight"]) for each in loaded.parameters())


def test_values_are_taken_as_they_are_when_fp8_has_no_scales(checkpoint: Path, tmp_path: Path) -> None:
    wanted = {k: v.to(files.FP8) for k, v in files.weights(checkpoint, "transformer").items()}
    save_file(files.renamed(wanted, WAN_TRANSFORMER), file := tmp_path / "wan_e4m3fn.safetensors")
    with open_checkpoint(WAN, str(checkpoint), {"transformer": str(file)}) as opened:
        assert_same(read(opened, "transformer"), wanted)
        load_everyway(opened, "denoiser_high")


def quantized(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    key = "blocks.0.ffn.0"
    if name == "format":
        text = json.dumps({"format": "nvfp4"}).encode()
        return state | {f"{key}.comfy_quant": torch.tensor(list(text), dtype=torch.uint8)}
    if name == "int8":
        return state | {
            f"{key}.weight": torch.zeros_like(state[f"{key}.weight"], dtype=torch.int8),
            f"{key}.weight_scale": torch.ones(()),
        }
    if name == "blocks":
        return state | {
            f"{key}.weight": state[f"{key}.weight"].to(files.FP8),
            f"{key}.weight_scale": torch.ones(3, 2),
        }
    return {k: v for k, v in state.items() if k != f"{key}.weight"} | {f"{key}.weight_scale": torch.ones(())}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("format", r"blocks.0.ffn.0.comfy_quant must be float8_e4m3fn or float8_e5m2, got nvfp4; try"),
        (
            "int8",
            r"blocks.0.ffn.0.weight must be fp8 where blocks.0.ffn.0.weight_scale is beside it, got int8",
        ),
        ("blocks", r"must be one factor or one for each of 96 rows, got shape \[3, 2\]"),
        ("alone", r"blocks.0.ffn.0.weight_scale must have a weight beside it, got none"),
    ],
)
def test_file_is_refused_when_it_is_quantized_in_another_way(
    kind: str, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    state = files.renamed(files.weights(checkpoint, "transformer"), WAN_TRANSFORMER)
    save_file(quantized(state, kind), file := tmp_path / "wan.safetensors")
    with (
        pytest.raises(InvalidRequest, match=message),
        open_checkpoint(WAN, str(checkpoint), {"transformer": str(file)}) as opened,
    ):
        opened.stored("transformer")


def test_text_encoder_is_the_same_when_it_is_comfys_single_file(checkpoint: Path, tmp_path: Path) -> None:
    state = {k: v for k, v in files.weights(checkpoint, "text_encoder").items() if "embed_tokens" not in k}
    extra = {"spiece_model": torch.zeros(9, dtype=torch.uint8), "scaled_fp8": torch.zeros(0, dtype=files.FP8)}
    save_file(state | extra, file := tmp_path / "umt5.safetensors")
    with open_checkpoint(WAN, str(checkpoint), {"text_encoder": str(file)}) as opened:
        assert_same(read(opened, "text_encoder"), state)
        load_everyway(opened, "text_encoder")


def test_vae_is_the_same_when_it_is_comfys_single_file(checkpoint: Path, tmp_path: Path) -> None:
    save_file(files.vae_state(checkpoint), file := tmp_path / "wan_2.1_vae.safetensors")
    with open_checkpoint(WAN, str(checkpoint), {"vae": str(file)}) as opened:
        assert_same(read(opened, "vae"), files.weights(checkpoint, "vae"))
        load_everyway(opened, "vae_decoder/next")


def test_network_is_the_same_when_its_files_are_placed_for_pytorch(checkpoint: Path, tmp_path: Path) -> None:
    state = files.scaled(files.renamed(files.weights(checkpoint, "transformer"), WAN_TRANSFORMER))
    save_file(state, file := tmp_path / "wan_fp8_scaled.safetensors")
    with open_checkpoint(WAN, str(checkpoint), {"transformer": str(file)}) as opened:
        with opened.recording() as planned:
            component = component_of(opened, "denoiser_high")
        axes = {axis.name: (axis.min, axis.opt, axis.max) for axis in axes_of(WAN, opened, {})}
        facts = NetworkFacts("wan_t2v", None, "denoiser_high", opened.source, axes)
        stage_network(component, facts, opened, planned, tmp_path / "placed")
        wanted = component.load(Precision.FP32, Loading.READ)
    placed = load(tmp_path / "placed" / network_file(component.graph), "fp32").module
    pairs = zip(placed.parameters(), wanted.parameters(), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)
    assert (tmp_path / "placed/checkpoint/transformer" / file.name).samefile(file)


def test_checkpoint_is_the_same_when_it_is_in_wans_original_layout(checkpoint: Path, tmp_path: Path) -> None:
    folder = files.original(checkpoint, tmp_path / "wan")
    with open_checkpoint(WAN, str(folder)) as opened, open_checkpoint(WAN, str(checkpoint)) as ours:
        for part in PARTS:
            wanted = {k: v for k, v in read(ours, part).items() if "embed_tokens" not in k}
            assert_same(read(opened, part), wanted)
        assert opened.source == str(folder)
        assert opened.config("scheduler/scheduler_config.json")["flow_shift"] == 12.0
        assert opened.config("model_index.json")["boundary_ratio"] == 0.875
        labels = {c.label for c in WAN.plan(ours, axes_of(WAN, ours, {})).components}
        assert labels == {c.label for c in WAN.plan(opened, axes_of(WAN, opened, {})).components}
        for label in ("text_encoder", "denoiser_low", "vae_decoder/next"):
            a, b = (component_of(each, label).load(Precision.FP32, Loading.READ) for each in (opened, ours))
            pairs = zip(a.parameters(), b.parameters(), strict=True)
            assert all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "flf2v"},
            r"Wan's original layout of a model of type flf2v.*Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers",
        ),
        (
            "models_t5_umt5-xxl-enc-bf16.pth",
            r"Wan's original layout of Wan2.2-T2V-A14B: models_t5_umt5-xxl-enc-bf16.pth must exist",
        ),
        (
            "high_noise_model/diffusion_pytorch_model-00002-of-00002.safetensors",
            r"must have all shards beside it, got none of diffusion_pytorch_model-00002-of-00002.safetensors",
        ),
    ],
)
def test_original_layout_is_named_when_it_is_not_read(
    change: Any, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    folder = files.original(checkpoint, tmp_path / "wan")
    if isinstance(change, str):
        (folder / change).unlink()
    else:
        config = folder / "high_noise_model/config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(InvalidRequest, match=message), open_checkpoint(WAN, str(folder)):
        pass


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        (
            "vae",
            {},
            r"part vae from .* got WanTransformer3DModel under Wan's own names; try --part transformer=",
        ),
        ("transformer", {"blocks.0.ffn.0.lora_up.weight": 1}, r"got a LoRA; try --lora"),
        ("transformer", {"vace_blocks.0.after_proj.weight": 1}, r"got the transformer of VACE"),
    ],
)
def test_file_is_named_when_it_is_something_else(
    part: str, content: dict[str, int], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    state = files.renamed(files.weights(checkpoint, "transformer"), WAN_TRANSFORMER)
    save_file(state | {key: torch.zeros(1) for key in content}, file := tmp_path / "x.safetensors")
    with (
        pytest.raises(InvalidRequest, match=message),
        open_checkpoint(WAN, str(checkpoint), {part: str(file)}),
    ):
        pass


def test_way_that_works_is_named_when_a_single_file_is_the_checkpoint(
    checkpoint: Path, tmp_path: Path
) -> None:
    file = files.comfy_transformer(checkpoint, tmp_path / "wan.safetensors")
    with (
        pytest.raises(InvalidRequest, match=rf"Wan's own names; .* --part transformer={file}"),
        open_checkpoint(WAN, str(file)),
    ):
        pass


def test_file_of_the_hub_is_not_downloaded_when_only_a_plan_is_made() -> None:
    source = "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/diffusion_models/nowhere.safetensors"
    message = r"must be a file on this machine for a plan, .*; try hf download Comfy-Org/Wan_2.2_ComfyUI_Rep"
    with (
        pytest.raises(InvalidRequest, match=message),
        open_checkpoint(WAN, "tiny", {"transformer": source}, configurations_only=True),
    ):
        pass


@pytest.mark.parametrize("root", [".", "split_files"])
def test_parts_are_named_when_the_checkpoint_is_comfys_folder(root: str, tmp_path: Path) -> None:
    names = ("diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled", "vae/wan_2.1_vae")
    for name in names:
        file = tmp_path / root / f"{name}.safetensors"
        file.parent.mkdir(parents=True)
        file.touch()
    message = (
        r"ComfyUI's folder of single files; .* --part transformer=.*high_noise.* --part vae=.*wan_2.1_vae"
    )
    with pytest.raises(InvalidRequest, match=message), open_checkpoint(WAN, str(tmp_path)):
        pass


@pytest.mark.parametrize("layout", ["bin", "bin shards", "fp16", "fp16 shards"])
def test_weights_are_the_same_when_their_files_have_other_names(
    layout: str, checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint, copy := tmp_path / "copy")
    part = copy / "transformer"
    state = load_file(file := part / "diffusion_pytorch_model.safetensors")
    wanted = {key: tensor.half() if "fp16" in layout else tensor for key, tensor in state.items()}
    file.unlink()
    names = {"bin": ".bin", "bin shards": "-{}.bin", "fp16": ".fp16.safetensors"}
    pattern = "diffusion_pytorch_model" + names.get(layout, ".fp16-0000{}-of-00002.safetensors")
    shards: list[dict[str, Tensor]] = [{}, {}] if "shards" in layout else [{}]
    for i, (key, tensor) in enumerate(wanted.items()):
        shards[i % len(shards)][key] = tensor
    for i, shard in enumerate(shards, 1):
        (torch.save if "bin" in layout else save_file)(shard, part / pattern.format(i))
    if "shards" in layout:
        kind = "bin.index" if "bin" in layout else "safetensors.index.fp16"
        index = {key: pattern.format(i) for i, shard in enumerate(shards, 1) for key in shard}
        (part / f"diffusion_pytorch_model.{kind}.json").write_text(json.dumps({"weight_map": index}))
    with open_checkpoint(WAN, str(copy)) as opened:
        assert_same(read(opened, "transformer"), wanted)
        loaded = component_of(opened, "denoiser_high").load(Precision.FP32, Loading.READ)
        component_of(opened, "denoiser_high").load(Precision.FP32, Loading.ON_DISK)
    values = {key.rpartition("transformer.")[2]: tensor for key, tensor in loaded.state_dict().items()}
    assert any(torch.equal(values[key], wanted[key].float()) for key in values.keys() & wanted.keys())


def test_variants_are_named_when_there_are_several(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, copy := tmp_path / "copy")
    file = copy / "transformer/diffusion_pytorch_model.safetensors"
    for word in ("fp16", "bf16"):
        shutil.copy(file, file.with_name(f"diffusion_pytorch_model.{word}.safetensors"))
    file.unlink()
    message = (
        "must have one variant of weights, got bf16, fp16; try --variant-file bf16 or --variant-file fp16"
    )
    with open_checkpoint(WAN, str(copy)) as opened, pytest.raises(InvalidRequest, match=message):
        opened.stored("transformer")


def test_variant_is_read_when_it_is_named_beside_the_usual_files(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, copy := tmp_path / "copy")
    state = files.weights(checkpoint, "transformer")
    halves = {key: tensor.half() + 1 for key, tensor in state.items()}
    save_file(halves, copy / "transformer/diffusion_pytorch_model.fp16.safetensors")
    with open_checkpoint(WAN, str(copy)) as opened:
        assert layouts_of(opened, PARTS) == {}
        assert_same(read(opened, "transformer"), state)
    with open_checkpoint(WAN, str(copy), variant_file="fp16") as opened:
        assert layouts_of(opened, PARTS) == {"transformer": "variant fp16"}
        assert_same(read(opened, "transformer"), halves)
        assert_same(read(opened, "vae"), files.weights(checkpoint, "vae"))
        loaded = component_of(opened, "denoiser_high").load(Precision.FP32, Loading.READ)
        with opened.recording() as planned:
            component = component_of(opened, "denoiser_high")
        axes = {axis.name: (axis.min, axis.opt, axis.max) for axis in axes_of(WAN, opened, {})}
        facts = NetworkFacts("wan_t2v", None, "denoiser_high", opened.source, axes)
        stage_network(component, facts, opened, planned, tmp_path / "placed")
    # PyTorch's server finds the variant alone, and reads it.
    placed = load(tmp_path / "placed" / network_file(component.graph), "fp32").module
    for network in (loaded, placed):
        values = {key.rpartition("transformer.")[2]: value for key, value in network.state_dict().items()}
        assert torch.equal(values["proj_out.weight"], halves["proj_out.weight"].float())
    message = "variant-file must be the variant of a part's weights, got fp8; the checkpoint has fp16 of tran"
    with (
        pytest.raises(InvalidRequest, match=message),
        open_checkpoint(WAN, str(copy), variant_file="fp8"),
    ):
        pass


def test_code_is_not_run_when_a_bin_file_contains_it(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, copy := tmp_path / "copy")
    (copy / "transformer/diffusion_pytorch_model.safetensors").unlink()
    torch.save({"a": print}, copy / "transformer/diffusion_pytorch_model.bin")
    with (
        open_checkpoint(WAN, str(copy)) as opened,
        pytest.raises(InvalidRequest, match=r"a pickle that calls .*print; it was not run"),
    ):
        opened.stored("transformer")


def test_snapshot_is_found_when_the_folder_is_the_hub_caches(checkpoint: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--Wan-AI--Wan2.2"
    shutil.copytree(checkpoint, cache / "snapshots/0123abc")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("0123abc")
    with open_checkpoint(WAN, str(cache)) as opened:
        assert opened.commit == "0123abc"
    shutil.rmtree(cache / "refs")
    (cache / "snapshots/other").mkdir()
    with (
        pytest.raises(InvalidRequest, match=r"must have one snapshot or a refs/main, got 0123abc, other"),
        open_checkpoint(WAN, str(cache)),
    ):
        pass
