"""Other layouts and LoRAs in a hub's repositories, and LoRAs that are merged into other layouts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import fake_hub
import layout_files as files
import lora_files
import pytest
import torch
from diffusers import WanTransformer3DModel
from fake_hub import FakeHub
from safetensors.torch import load_file, save_file

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.layouts.chosen_files import layouts_of
from slipway_export.checkpoint.layouts.names import WAN_TRANSFORMER
from slipway_export.checkpoint.lora.beside import check_beside
from slipway_export.checkpoint.lora.requests import NO_ADDITIONS, LoraRequest, RequestedAdditions
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.torch_model import stage_network
from slipway_export.engines.torch_network import NetworkFacts, load
from slipway_export.families import family_named
from slipway_export.spec import Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.torch_engine.network_description import network_file

WAN = family_named("wan_t2v")
WAN_ID, COMFY_ID, ORIGINAL_ID = "Wan-AI/Tiny-Diffusers", "Comfy-Org/Tiny", "Wan-AI/Tiny"
FP16 = "diffusion_pytorch_model.fp16.safetensors"


@pytest.fixture
def hub(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a tiny Wan checkpoint, and an empty cache."""
    monkeypatch.chdir(tmp_path)
    with fake_hub.serving() as served:
        fake_hub.use(served, tmp_path / "cache", monkeypatch)
        served.repositories[WAN_ID] = Path(shutil.copytree(checkpoint, tmp_path / "published"))
        yield served
        fake_hub.forget()


def refusal(source: str, parts: dict[str, str] | None = None, *loras: LoraRequest) -> str:
    """Return the message with which a checkpoint is refused."""
    requested = RequestedAdditions(loras)
    with (
        pytest.raises(InvalidRequest) as refused,
        open_checkpoint(WAN, source, parts, requested=requested) as opened,
    ):
        check_beside(WAN, opened, requested)
    return str(refused.value)


def transformer(checkpoint: Path) -> WanTransformer3DModel:
    return WanTransformer3DModel.from_pretrained(checkpoint / "transformer")


def test_only_the_variant_is_downloaded_when_there_are_no_other_tensors(hub: FakeHub) -> None:
    folder = hub.repositories[WAN_ID] / "transformer"
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / FP16)
    (folder / "diffusion_pytorch_model.bin").write_bytes(b"pickle")
    with open_checkpoint(WAN, WAN_ID) as opened:
        assert layouts_of(opened, ["transformer"]) == {"transformer": "variant fp16"}
        assert opened.stored("transformer")
    assert {name for name in hub.weights() if "/transformer/" in name} == {f"{WAN_ID}/transformer/{FP16}"}


def test_several_variants_are_refused_without_any_weights(hub: FakeHub) -> None:
    folder = hub.repositories[WAN_ID] / "transformer"
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / FP16)
    (folder / FP16.replace("fp16", "bf16")).write_bytes(b"other")
    text = refusal(WAN_ID)
    assert text.endswith("got bf16, fp16; try --variant-file bf16 or --variant-file fp16")
    assert not hub.weights()
    with open_checkpoint(WAN, WAN_ID, variant_file="fp16") as opened:
        assert layouts_of(opened, ["transformer", "vae"]) == {"transformer": "variant fp16"}
        assert opened.stored("transformer")
    assert {name for name in hub.weights() if "/transformer/" in name} == {f"{WAN_ID}/transformer/{FP16}"}


def test_only_the_file_is_downloaded_when_a_part_is_a_file_of_the_hub(
    hub: FakeHub, checkpoint: Path, tmp_path: Path
) -> None:
    inside = "split_files/diffusion_models"
    (folder := tmp_path / "comfy" / inside).mkdir(parents=True)
    files.comfy_transformer(checkpoint, folder / "wan.safetensors")
    (folder / "other.safetensors").write_bytes(b"other")
    hub.repositories[COMFY_ID] = tmp_path / "comfy"
    with open_checkpoint(WAN, WAN_ID, {"transformer": f"{COMFY_ID}/{inside}/wan.safetensors"}) as opened:
        assert opened.part_locations["transformer"].commit == fake_hub.COMMIT
        found = {key: tensor.read() for key, tensor in opened.stored("transformer").items()}
    wanted = files.weights(checkpoint, "transformer")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
    assert {name for name in hub.weights() if name.startswith(COMFY_ID)} == {
        f"{COMFY_ID}/{inside}/wan.safetensors"
    }
    assert f"{WAN_ID}/transformer/diffusion_pytorch_model.safetensors" not in hub.files
    # The width of heads is in no file of weights; the checkpoint's own configuration states it.
    assert f"{WAN_ID}/transformer/config.json" in hub.files


def test_no_file_is_downloaded_when_a_part_or_the_checkpoint_does_not_exist(hub: FakeHub) -> None:
    missing = f"{WAN_ID}/transformer/nowhere.safetensors"
    assert "must be a file in hub repository" in refusal(WAN_ID, {"transformer": missing})
    there = f"{WAN_ID}/transformer/diffusion_pytorch_model.safetensors"
    assert "check the spelling" in refusal("some/typo", {"transformer": there})
    assert not hub.weights()


def test_original_layout_is_read_when_it_is_in_the_hub(
    hub: FakeHub, checkpoint: Path, tmp_path: Path
) -> None:
    folder = files.original(checkpoint, tmp_path / "wan")
    (folder / "assets.bin").write_bytes(b"unused")
    hub.repositories[ORIGINAL_ID] = folder
    message = f"must be on this machine for a plan.*; try hf download {ORIGINAL_ID} first"
    with (
        pytest.raises(InvalidRequest, match=message),
        open_checkpoint(WAN, ORIGINAL_ID, configurations_only=True),
    ):
        pass
    assert not hub.weights()
    lines: list[str] = []
    with open_checkpoint(WAN, ORIGINAL_ID, report=lines.append) as opened:
        assert opened.config("scheduler/scheduler_config.json")["flow_shift"] == 12.0
        assert opened.commit == fake_hub.COMMIT
        assert len(opened.stored("transformer_2")) == len(files.weights(checkpoint, "transformer_2"))
    assert f"{ORIGINAL_ID}/assets.bin" not in hub.files
    assert any(line.startswith(f"{ORIGINAL_ID}: ") and "to download" in line for line in lines)
    with open_checkpoint(WAN, ORIGINAL_ID, configurations_only=True) as opened:
        assert opened.has("transformer/config.json")


def test_original_layout_of_another_model_is_refused_without_any_weights(
    hub: FakeHub, checkpoint: Path, tmp_path: Path
) -> None:
    folder = files.original(checkpoint, tmp_path / "wan")
    config = folder / "high_noise_model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "flf2v"}))
    hub.repositories[ORIGINAL_ID] = folder
    assert "try --checkpoint Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers" in refusal(ORIGINAL_ID)
    assert not hub.weights()


def test_parts_are_named_when_the_repository_is_comfys(hub: FakeHub, tmp_path: Path) -> None:
    names = (
        "diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors",
        "vae/wan_2.1_vae.safetensors",
    )
    for name in names:
        (file := tmp_path / "comfy/split_files" / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    hub.repositories[COMFY_ID] = tmp_path / "comfy"
    options = [
        f"--part {p}={COMFY_ID}/split_files/{n}" for p, n in zip(("transformer", "vae"), names, strict=True)
    ]
    assert refusal(COMFY_ID).endswith("; try --checkpoint with a whole checkpoint, and " + " ".join(options))
    assert not hub.files


def test_lora_that_does_not_fit_is_refused_before_the_weights_are_downloaded(
    hub: FakeHub, tmp_path: Path
) -> None:
    tensors = {f"transformer.blocks.77.attn1.to_q.lora_{x}.weight": torch.zeros(2, 2) for x in "AB"}
    save_file(tensors, file := tmp_path / "other.safetensors")
    text = refusal(WAN_ID, None, LoraRequest(str(file), "denoiser_high"))
    assert "try a LoRA that was trained for this network" in text
    assert not hub.weights()


def lora_in_a_hub(hub: FakeHub, checkpoint: Path, folder: Path) -> str:
    """Put PEFT's files of a LoRA with 3 MB of weights, and an alpha of 6, into the hub; return their id."""
    folder.mkdir()
    lora_files.write_lora(
        folder / "adapter_model.safetensors",
        transformer(checkpoint),
        "peft",
        alpha=6.0,
        modules=["blocks.0.attn1.to_q"],
    )
    rank = 8000
    width = transformer(checkpoint).blocks[0].attn1.to_k.weight.shape[0]
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors |= {
        f"base_model.model.blocks.0.attn1.to_k.lora_{x}.weight": torch.zeros(shape)
        for x, shape in (("A", (rank, width)), ("B", (width, rank)))
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    hub.repositories["someone/lora"] = folder
    return "someone/lora"


def test_header_alone_of_a_lora_is_downloaded_when_a_plan_is_made(
    hub: FakeHub, checkpoint: Path, tmp_path: Path
) -> None:
    name = f"{lora_in_a_hub(hub, checkpoint, tmp_path / 'lora')}/adapter_model.safetensors"
    size = (tmp_path / "lora/adapter_model.safetensors").stat().st_size
    requested = RequestedAdditions((LoraRequest("someone/lora", "denoiser_high"),))
    with open_checkpoint(WAN, WAN_ID, configurations_only=True, requested=requested) as opened:
        WAN.plan(opened, axes_of(WAN, opened, {}))
        (lora,) = opened.additions.loras
        assert lora.config["lora_alpha"] == 6.0
        opened.load("transformer", WanTransformer3DModel, Precision.FP32, Loading.META)
    assert size > 3_000_000
    assert 0 < hub.bytes[name] <= 100_001
    assert {file for file in hub.weights() if not file.startswith("someone/")} == set()


def test_alpha_beside_a_lora_of_a_hub_is_applied(hub: FakeHub, checkpoint: Path, tmp_path: Path) -> None:
    lora_in_a_hub(hub, checkpoint, tmp_path / "lora")
    requested = RequestedAdditions((LoraRequest("someone/lora", "denoiser_high"),))
    with open_checkpoint(WAN, WAN_ID, requested=requested) as opened:
        assert opened.additions.loras[0].commit == fake_hub.COMMIT
        found = opened.load("transformer", WanTransformer3DModel, Precision.FP32, Loading.READ)
    own = transformer(checkpoint).blocks[0].attn1.to_q
    down, up = lora_files.factors(own, 0)
    wanted = own.weight + 6.0 / lora_files.RANK * up @ down
    assert torch.allclose(found.blocks[0].attn1.to_q.weight, wanted, rtol=1e-6, atol=1e-6)


def test_lora_beside_the_weights_of_the_hub_is_not_ignored(hub: FakeHub, checkpoint: Path) -> None:
    network = transformer(checkpoint)
    lora_files.write_lora(
        hub.repositories[WAN_ID] / "transformer_2/pytorch_lora_weights.safetensors", network, "diffusers"
    )
    named = f"{WAN_ID}/transformer_2/pytorch_lora_weights.safetensors"
    assert f"try --lora denoiser_low={named} to merge one" in refusal(WAN_ID)
    with open_checkpoint(
        WAN, WAN_ID, requested=(requested := RequestedAdditions((LoraRequest(named, "denoiser_low"),)))
    ) as opened:
        check_beside(WAN, opened, requested)


def test_lora_beside_the_original_layout_is_not_ignored(checkpoint: Path, tmp_path: Path) -> None:
    folder = files.original(checkpoint, tmp_path / "wan")
    network = transformer(checkpoint)
    for place, name in (("low_noise_model", "denoiser_low"), (".", "denoiser_high")):
        file = lora_files.write_lora(folder / place / "style_lora.safetensors", network, "comfy")
        assert f"try --lora {name}={file} to merge one" in refusal(str(folder))
        file.unlink()
    with open_checkpoint(WAN, str(folder)) as opened:
        check_beside(WAN, opened, NO_ADDITIONS)


def network_for_pytorch(checkpoint: Checkpoint, folder: Path) -> dict[str, torch.Tensor]:
    """Place the denoiser as engine `torch` does, and return the weights that its server loads."""
    axes = axes_of(WAN, checkpoint, {})
    with checkpoint.recording() as planned:
        component = next(c for c in WAN.plan(checkpoint, axes).components if c.label == "denoiser_high")
    ranges = {axis.name: (axis.min, axis.opt, axis.max) for axis in axes}
    facts = NetworkFacts("wan_t2v", None, "denoiser_high", checkpoint.source, ranges)
    stage_network(component, facts, checkpoint, planned, folder)
    return dict(load(folder / network_file(component.graph), "fp32").module.named_parameters())


@pytest.mark.parametrize("layout", ["fp8_scaled", "single file", "original", "bin"])
def test_lora_is_merged_into_the_values_of_another_layout(
    layout: str, checkpoint: Path, tmp_path: Path
) -> None:
    network = transformer(checkpoint)
    lora = lora_files.write_lora(tmp_path / "lora.safetensors", network, "lightx2v")
    values, source, parts = files.weights(checkpoint, "transformer"), str(checkpoint), {}
    if layout == "original":
        source = str(files.original(checkpoint, tmp_path / "wan"))
    elif layout == "bin":
        source = str(shutil.copytree(checkpoint, tmp_path / "copy"))
        (Path(source) / "transformer/diffusion_pytorch_model.safetensors").unlink()
        torch.save(values, Path(source) / "transformer/diffusion_pytorch_model.bin")
    else:
        state = files.renamed(values, WAN_TRANSFORMER)
        if layout == "fp8_scaled":
            state = files.scaled(state)
            values = {str(WAN_TRANSFORMER.to_library(k)): v for k, v in files.descaled(state).items()}
        save_file(state, file := tmp_path / "wan.safetensors")
        parts = {"transformer": str(file)}
    modules = [name for name in lora_files.linear_modules(network) if name.startswith("blocks.")]
    requested = RequestedAdditions((LoraRequest(str(lora), "denoiser_high", 0.5),))
    with open_checkpoint(WAN, source, parts, requested=requested) as opened:
        loaded = opened.load("transformer", WanTransformer3DModel, Precision.FP32, Loading.READ)
        if layout == "fp8_scaled":
            placed = network_for_pytorch(opened, tmp_path / "placed")
            wanted_values = dict(loaded.named_parameters())
            assert {name.rpartition("transformer.")[2] for name in placed} == wanted_values.keys()
            for name, tensor in placed.items():
                assert torch.equal(tensor, wanted_values[name.rpartition("transformer.")[2]]), name
    found = loaded.state_dict()
    for number, name in enumerate(modules):
        down, up = lora_files.factors(lora_files.linear_modules(network)[name], number)
        wanted = values[f"{name}.weight"].float() + 0.5 * (up @ down)
        assert torch.allclose(found[f"{name}.weight"], wanted, rtol=1e-6, atol=1e-6), name
    assert torch.equal(found["proj_out.weight"], values["proj_out.weight"].float())
