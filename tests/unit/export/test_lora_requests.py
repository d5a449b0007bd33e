"""LoRAs on the command line, their files, those beside the weights, and the schedule of a few steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from safetensors.torch import save_file

from slipway_export.checkpoint.lora.beside import check_beside
from slipway_export.checkpoint.lora.keys import Role, entry_of
from slipway_export.checkpoint.lora.requests import (
    LoraRequest,
    RequestedAdditions,
    parse_loras,
    recorded_additions,
)
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.spec.schedule_defaults import ScheduleDefaults, parse_schedule
from slipway_serving.diffusion.noise import Noise
from slipway_serving.diffusion.schedules import listed_schedule
from slipway_serving.diffusion.videos.states import continued_request
from slipway_serving.families.wan_t2v.request import TextToVideoRequest, listed_defaults
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.requests import encode

WAN = family_named("wan_t2v")
AIRIMU = family_named("airimu")


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Wan checkpoint with two experts."""
    folder = tmp_path_factory.mktemp("wan")
    WAN.presets["tiny"].write(folder, 0)
    return folder


def save(path: Path, prefix: str = "diffusion_model.", *prefixes: str) -> Path:
    """Write a LoRA of one module under each prefix."""
    path.parent.mkdir(exist_ok=True)
    ends = {"lora_A.weight": torch.zeros(2, 4), "lora_B.weight": torch.zeros(4, 2)}
    save_file(
        {
            f"{each}blocks.0.self_attn.q.{end}": value.clone()
            for each in (prefix, *prefixes)
            for end, value in ends.items()
        },
        path,
    )
    return path


def found(wan: Path, *requests: LoraRequest) -> list[tuple[str, float, str]]:
    with open_checkpoint(WAN, str(wan), requested=RequestedAdditions(requests)) as checkpoint:
        return [(lora.component, lora.scale, lora.only) for lora in checkpoint.additions.loras]


@pytest.mark.parametrize(
    ("key", "module", "role"),
    [
        ("transformer.blocks.0.attn1.to_q.lora_A", "blocks.0.attn1.to_q", Role.DOWN),
        ("transformer.blocks.0.attn1.to_q.lora_B", "blocks.0.attn1.to_q", Role.UP),
        ("blocks.0.attn1.to_q.lora_B.default.weight", "blocks.0.attn1.to_q", Role.UP),
        ("transformer.blocks.0.attn1.to_q.lora_linear_layer.down.weight", "blocks.0.attn1.to_q", Role.DOWN),
        ("transformer.blocks.0.attn1.to_q_lora.up.weight", "blocks.0.attn1.to_q", Role.UP),
        ("lora_unet__blocks_0_cross_attn_k.lora_down.weight", "blocks_0_cross_attn_k", Role.DOWN),
        ("diffusion_model.blocks.0.diff_m", "blocks.0.modulation", Role.DIFFERENCE),
        ("diffusion_model.blocks.0.norm3.diff_b", "blocks.0.norm3", Role.BIAS_DIFFERENCE),
    ],
)
def test_key_is_taken_apart_in_each_public_form(key: str, module: str, role: Role) -> None:
    entry = entry_of(key)
    assert entry is not None
    assert (entry.module, entry.role) == (module, role)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.safetensors", LoraRequest("a.safetensors")),
        ("a.safetensors:0.8", LoraRequest("a.safetensors", scale=0.8)),
        ("denoiser-high=a.safetensors:-1", LoraRequest("a.safetensors", "denoiser_high", -1.0)),
        (
            "Kijai/WanVideo_comfy/x/y.safetensors:1e-1",
            LoraRequest("Kijai/WanVideo_comfy/x/y.safetensors", scale=0.1),
        ),
        ("transformer_2=own/name", LoraRequest("own/name", "transformer_2")),
    ],
)
def test_lora_is_parsed_into_component_source_and_scale(text: str, expected: LoraRequest) -> None:
    assert parse_loras([text, "none"]) == (expected,)


def test_file_with_a_colon_or_equals_sign_is_a_file_when_it_exists(tmp_path: Path) -> None:
    file = save(tmp_path / "a=b:2")
    assert parse_loras([str(file)]) == (LoraRequest(str(file)),)


@pytest.mark.parametrize("text", ["", "denoiser_high=none", ":0.5x="])
def test_lora_is_refused_when_it_names_no_file(wan: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match="lora"):
        found(wan, *parse_loras([text]))


@pytest.mark.parametrize("source", ["missing.safetensors", "folder/missing.safetensors", "/missing/a"])
def test_missing_file_is_refused_without_a_look_at_the_hub(wan: Path, source: str) -> None:
    with pytest.raises(InvalidRequest, match=f"lora must be an existing file or a hub id, got '{source}'"):
        found(wan, LoraRequest(source, "denoiser_high"))


def test_component_must_be_named_when_two_experts_could_be_meant(wan: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "a.safetensors")
    with pytest.raises(InvalidRequest, match=f"--lora denoiser_high={file} or --lora denoiser_low={file}"):
        found(wan, LoraRequest(str(file)))
    with pytest.raises(InvalidRequest, match="component must be one of denoiser_high, denoiser_low, got vae"):
        found(wan, LoraRequest(str(file), "vae"))
    assert found(wan, LoraRequest(str(file), "denoiser_low", 0.5)) == [("denoiser_low", 0.5, "")]


def test_prefixes_of_both_experts_decide_when_a_file_has_both(wan: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "a.safetensors", "transformer.", "transformer_2.")
    assert found(wan, LoraRequest(str(file))) == [
        ("denoiser_high", 1.0, "transformer"),
        ("denoiser_low", 1.0, "transformer_2"),
    ]
    assert found(wan, LoraRequest(str(file), "denoiser_low")) == [("denoiser_low", 1.0, "transformer_2")]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"blocks.0.weight": torch.zeros(2)}, "must have the keys of a LoRA .* got blocks.0.weight"),
        ({"a.lora_magnitude_vector": torch.zeros(2)}, "got DoRA, which is not supported"),
    ],
)
def test_file_is_refused_when_it_is_no_lora(
    wan: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(InvalidRequest, match=message):
        found(wan, LoraRequest(str(tmp_path / "a.safetensors"), "denoiser_high"))


def test_dora_of_peft_is_refused_by_its_configuration(wan: Path, tmp_path: Path) -> None:
    save(tmp_path / "adapter_model.safetensors", "base_model.model.")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"use_dora": True}))
    from diffusers import WanTransformer3DModel

    from slipway_export.spec import Loading, Precision

    requested = RequestedAdditions((LoraRequest(str(tmp_path), "denoiser_high"),))
    with (
        open_checkpoint(WAN, str(wan), requested=requested) as checkpoint,
        pytest.raises(InvalidRequest, match="got DoRA"),
    ):
        checkpoint.load("transformer", WanTransformer3DModel, Precision.FP32, Loading.META)


def test_family_without_such_components_refuses_loras_and_schedules(tmp_path: Path) -> None:
    lora = RequestedAdditions((LoraRequest(str(save(tmp_path / "a.safetensors"))),))
    with (
        pytest.raises(InvalidRequest, match="lora must be left out for airimu"),
        open_checkpoint(AIRIMU, "tiny", requested=lora),
    ):
        pass
    steps = RequestedAdditions(schedule=ScheduleDefaults((1000, 500)))
    with pytest.raises(InvalidRequest, match="steps-list"), open_checkpoint(AIRIMU, "tiny", requested=steps):
        pass


@pytest.mark.parametrize("place", ["pytorch_lora_weights.safetensors", "transformer_2/any.safetensors"])
def test_lora_beside_the_weights_must_be_named_or_declined(wan: Path, tmp_path: Path, place: str) -> None:
    for path in wan.iterdir():
        (tmp_path / path.name).mkdir() if path.is_dir() else (tmp_path / path.name).symlink_to(path)
        for file in path.iterdir() if path.is_dir() else ():
            (tmp_path / path.name / file.name).symlink_to(file)
    file = save(tmp_path / place)
    named = LoraRequest(str(file), "denoiser_low")
    for requested in (RequestedAdditions((named,)), RequestedAdditions(ignores_others=True)):
        with open_checkpoint(WAN, str(tmp_path), requested=requested) as checkpoint:
            check_beside(WAN, checkpoint, requested)
    with open_checkpoint(WAN, str(tmp_path)) as checkpoint:
        with pytest.raises(InvalidRequest, match="--lora none") as refused:
            check_beside(WAN, checkpoint, RequestedAdditions())
        assert str(file) in str(refused.value)


def test_manifest_leads_to_the_same_loras() -> None:
    entry = {"component": "denoiser_low", "source": "a/b", "scale": 0.5, "commit": None, "sha256": "0"}
    assert recorded_additions({"loras": [entry]}).loras == (LoraRequest("a/b", "denoiser_low", 0.5),)
    assert recorded_additions({}).loras == ()


def test_schedule_is_parsed_and_its_rules_are_named() -> None:
    assert parse_schedule("1000, 750,500,250", 5.0) == ScheduleDefaults((1000, 750, 500, 250), 5.0)
    assert not parse_schedule(None, None)
    for steps, shift in (("4", -1.0), ("250,500", None), ("1001", None), ("a", None), ("", None)):
        with pytest.raises(InvalidRequest, match=r"steps-list|flow-shift"):
            parse_schedule(steps, shift)


def test_listed_schedule_shifts_the_steps_as_diffusers_does() -> None:
    config = {"_class_name": "UniPCMultistepScheduler", "flow_shift": 3.0, "num_train_timesteps": 1000}
    expected = FlowMatchEulerDiscreteScheduler(shift=5.0)
    expected.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25])
    schedule = listed_schedule(config, (1000, 750, 500, 250), 5.0, "test", Noise(0))
    assert torch.equal(torch.stack(list(schedule.timesteps)), expected.timesteps)
    assert [round(float(t)) for t in schedule.timesteps] == [1000, 938, 833, 625]
    own = listed_schedule(config, (1000, 500), None, "test", Noise(0))
    assert [round(float(t)) for t in own.timesteps] == [1000, 750]


def test_request_takes_the_defaults_of_the_model_for_what_it_leaves_out() -> None:
    sent = encode(TextToVideoRequest(prompt="a", steps=7))
    defaults = listed_defaults((1000, 750, 500, 250))
    del sent["guidance_scale"]
    request, _ = continued_request(TextToVideoRequest, sent, "wan_t2v", defaults)
    assert (request.steps, request.guidance_scale) == (7, 1.0)
    del sent["steps"]
    request, _ = continued_request(TextToVideoRequest, sent, "wan_t2v", defaults)
    assert (request.steps, request.guidance_scale) == (4, 1.0)
    assert continued_request(TextToVideoRequest, sent, "wan_t2v")[0].steps == 40
