"""The family `framepack_i2v`: what its parts become, where they may lie, and what is refused."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import fake_hub
import pytest
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack import DEFAULT_PROMPT_TEMPLATE
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from slipway_cli.root import run
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.framepack_i2v.family import FAMILY, facts_of
from slipway_export.families.framepack_i2v.prompt import CROP_START, PROMPT_TEMPLATE
from slipway_export.options import ExportOptions
from slipway_export.run import ExportResult
from slipway_export.spec import Component, Loading, Precision
from slipway_serving.families.framepack_i2v.facts import FACTS_FILE, Facts
from slipway_serving.protocol.errors import InvalidRequest

PARTS = ("transformer", "text_encoder", "text_encoder_2", "image_encoder", "vae")
COMPONENTS = ("transformer", "llama_text", "clip_text", "siglip_image", "vae_encoder", "vae_decoder")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint, as `slipway checkpoint framepack_i2v` writes it. Read only."""
    folder = tmp_path_factory.mktemp("framepack")
    FAMILY.presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "checkpoint"))


def planned(
    source: Path | str, parts: dict[str, str] | None = None, *, configurations_only: bool = False
) -> dict[str, Component]:
    """Return the components of a checkpoint, by name."""
    with open_checkpoint(FAMILY, str(source), parts, configurations_only=configurations_only) as checkpoint:
        axes = axes_of(FAMILY, checkpoint, {})
        return {component.name: component for component in FAMILY.plan(checkpoint, axes).components}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_plan_has_a_graph_for_each_network(tiny: Path) -> None:
    components = planned(tiny)
    assert tuple(components) == COMPONENTS == FAMILY.parts_alone
    assert {component.graph for component in components.values()} == {"model"}
    vae = ("vae_encoder", "vae_decoder")
    assert all(
        set(components[name].tolerance) == set(Precision) - {Precision.FP64} for name in COMPONENTS[:4]
    )
    assert all(
        list(components[name].tolerance) == [Precision.FP32, Precision.FP16, Precision.BF16] for name in vae
    )


def test_transformer_has_the_inputs_of_diffusers_forward(tiny: Path) -> None:
    transformer = planned(tiny)["transformer"]
    forward = inspect.signature(HunyuanVideoFramepackTransformer3DModel.forward).parameters
    names = [tensor.name for tensor in transformer.inputs]
    assert names == [name for name in forward if name not in ("self", "attention_kwargs", "return_dict")]
    shapes = {tensor.name: tensor.at(transformer.points()["max"]) for tensor in transformer.inputs}
    assert shapes["hidden_states"] == (2, 16, 9, 12, 12)
    assert [shapes[name][2] for name in names if name.startswith("latents_")] == [2, 2, 16]
    assert [len(shapes[name]) for name in names if name.startswith("indices_")] == [1, 1, 1, 1]
    assert shapes["image_embeds"] == (2, 16, 40)
    assert [axis.name for axis in transformer.axes if axis.min < axis.max] == [
        "batch", "token_height", "token_width", "text_tokens",
    ]  # fmt: skip


def test_prompts_that_a_graph_is_verified_with_have_different_lengths(tiny: Path) -> None:
    transformer = planned(tiny)["transformer"]
    mask = next(tensor for tensor in transformer.inputs if tensor.name == "encoder_attention_mask")
    assert mask.example is not None
    assert mask.example((3, 8)).sum(axis=1).tolist() == [6, 4, 2]
    assert mask.example((2, 1)).tolist() == [[1], [1]]


def test_facts_say_what_a_served_pipeline_must_know(tiny: Path, tmp_path: Path) -> None:
    with open_checkpoint(FAMILY, str(tiny)) as checkpoint:
        facts = facts_of(checkpoint, axes_of(FAMILY, checkpoint, {}))
    (tmp_path / FACTS_FILE).write_bytes(facts.to_json())
    assert Facts.read(tmp_path).prompt == facts.prompt
    assert (facts.prompt.template, facts.prompt.crop_start) == tuple(DEFAULT_PROMPT_TEMPLATE.values())
    assert (facts.section_frames, facts.prompt.tokens, facts.prompt.clip_tokens) == (9, 256, 77)
    assert facts.picture.side_px == 56
    assert facts.models.llama_text == "framepack_i2v_llama_text"
    assert facts.scheduler["shift"] == 7.0


@pytest.mark.parametrize(
    ("tokenizer", "encoder", "embeddings"),
    [("tokenizer", "text_encoder", 300), ("tokenizer_2", "text_encoder_2", 500)],
)
def test_tokenizer_is_refused_when_its_ids_have_no_embedding(
    copy: Path, tokenizer: str, encoder: str, embeddings: int
) -> None:
    largest = max(AutoTokenizer.from_pretrained(copy / tokenizer).get_vocab().values())
    edit(copy / encoder / "config.json", vocab_size=embeddings)
    with pytest.raises(
        InvalidRequest,
        match=rf"{copy}: {tokenizer} must have token ids below {embeddings}, which is vocab_size of"
        rf" {encoder}/config\.json \(checkpoint {copy}\), got {largest};",
    ):
        planned(copy)


def test_scheduler_is_refused_when_no_request_could_use_it(copy: Path) -> None:
    edit(copy / "scheduler/scheduler_config.json", invert_sigmas=True)
    with pytest.raises(
        InvalidRequest,
        match=r"scheduler/scheduler_config\.json: invert_sigmas must be False, .* got True",
    ):
        planned(copy)


def test_template_has_so_many_tokens_before_the_prompt_as_are_cropped(tiny: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny / "tokenizer")
    before, _ = PROMPT_TEMPLATE.split("{}")
    ids, whole = (
        tokenizer(text)["input_ids"] for text in (before, PROMPT_TEMPLATE.format("A boat, 2 cats."))
    )
    assert len(ids) == CROP_START
    assert whole[:CROP_START] == ids


def test_parts_are_found_when_they_lie_in_several_places(copy: Path, tmp_path: Path) -> None:
    # As the public ones: the transformer at the root of its place, the image encoder in a folder of its own.
    root, redux = tmp_path / "FramePackI2V_HY", tmp_path / "flux_redux_bfl"
    shutil.move(copy / "transformer", root)
    for name in ("image_encoder", "feature_extractor"):
        shutil.move(copy / name, redux / name)
    places = {"transformer": str(root), "image_encoder": str(redux), "feature_extractor": str(redux)}
    assert tuple(planned(copy, places)) == COMPONENTS
    with pytest.raises(InvalidRequest, match=r"transformer/config\.json, image_encoder/config\.json"):
        planned(copy)


@pytest.mark.parametrize("part", PARTS)
def test_component_needs_its_own_part_only(tiny: Path, part: str) -> None:
    own = next(each for each in FAMILY.parts if each.name == part).components
    assert tuple(planned("", {part: str(tiny / part)})) == own
    with pytest.raises(InvalidRequest, match=rf"part {part} from .*: {part}/config\.json must exist"):
        planned("", {part: str(tiny / "scheduler")})


def test_transformer_alone_takes_the_public_image_encoders_tokens(tiny: Path) -> None:
    (transformer,) = planned("", {"transformer": str(tiny)}).values()
    assert {tensor.name: tensor.shape for tensor in transformer.inputs}["image_embeds"] == ("batch", 729, 40)


def test_folder_of_a_hub_id_is_a_place_of_a_part(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with fake_hub.serving() as hub:
        fake_hub.use(hub, tmp_path / "cache", monkeypatch)
        hub.repositories["some/where"] = tiny
        assert tuple(planned("", {"vae": "some/where/vae"})) == ("vae_encoder", "vae_decoder")
        assert {name.split("/")[2] for name in hub.files} == {"vae"}
        with pytest.raises(
            InvalidRequest, match="part vae must be a folder in hub repository some/where, got nothing"
        ):
            planned("", {"vae": "some/where/nothing"})
        fake_hub.forget()


def test_transformer_is_refused_when_it_is_hunyuanvideos_own(copy: Path) -> None:
    edit(copy / "transformer/config.json", has_clean_x_embedder=False, guidance_embeds=False)
    with pytest.raises(InvalidRequest) as refused:
        planned(copy)
    assert "guidance_embeds must be True, got False" in str(refused.value)
    assert "has_clean_x_embedder must be true, got False; try --part transformer=lllyasviel/" in str(
        refused.value
    )


def test_parts_are_refused_when_they_do_not_fit_together(copy: Path) -> None:
    edit(copy / "transformer/config.json", text_embed_dim=33, image_proj_dim=41)
    with pytest.raises(InvalidRequest) as refused:
        planned(copy)
    assert "text_embed_dim must be 32 as hidden_size of text_encoder" in str(refused.value)
    assert "image_proj_dim must be 40 as hidden_size of image_encoder" in str(refused.value)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("vae", {"spatial_compression_ratio": 16}, "spatial_compression_ratio must be 8, got 16"),
        ("text_encoder", {"num_hidden_layers": 2}, "num_hidden_layers must be above 2"),
        ("transformer", {"rope_axes_dim": [4, 12]}, "rope_axes_dim must be three even numbers"),
        ("transformer", {"attention_head_dim": 32}, r"attention_head_dim \(32\), got \[4, 6, 6\]"),
    ],
)
def test_part_is_refused_when_its_configuration_is_another(
    copy: Path, file: str, change: dict[str, Any], message: str
) -> None:
    edit(copy / file / "config.json", **change)
    with pytest.raises(InvalidRequest, match=message):
        planned(copy)


def test_decoder_is_refused_when_a_tile_has_more_frames_than_are_told_apart(tiny: Path) -> None:
    axes = tuple(axis.around(9) if axis.name == "tile_frames" else axis for axis in FAMILY.axes)
    with (
        open_checkpoint(FAMILY, str(tiny)) as checkpoint,
        pytest.raises(InvalidRequest, match="axis tile_frames must be at most 8, got 1:9:9"),
    ):
        FAMILY.plan(checkpoint, axes)


@pytest.mark.parametrize(
    ("part", "prefix"), [("text_encoder_2", "text_model."), ("image_encoder", "vision_model.")]
)
def test_keys_may_begin_as_an_earlier_transformers_wrote_them(copy: Path, part: str, prefix: str) -> None:
    file = copy / part / "model.safetensors"
    stored = load_file(file)
    assert all(key.startswith(prefix) for key in stored)
    (component,) = planned("", {part: str(copy / part)}).values()
    before = component.load(Precision.FP32, Loading.READ).state_dict()
    save_file({key.removeprefix(prefix): tensor for key, tensor in stored.items()}, file, {"format": "pt"})
    after = component.load(Precision.FP32, Loading.READ).state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def load(folder: Path, part: str, *, configurations_only: bool = False) -> None:
    parts = {part: str(folder / part)}
    for component in planned("", parts, configurations_only=configurations_only).values():
        component.load(Precision.FP32, Loading.ON_DISK if configurations_only else Loading.READ)


def test_checkpoint_is_refused_when_its_configuration_says_that_it_is_quantized(copy: Path) -> None:
    quantized = {"quant_method": "fp8", "modules_to_not_convert": ["proj_out"]}
    edit(copy / "transformer/config.json", quantization_config=quantized)
    message = (
        r"transformer/config.json: quantization_config must be left out, got fp8: its Linear modules except"
        r" proj_out are kernels that ONNX has no operators for; try .* --precision int8 or int4"
    )
    with pytest.raises(InvalidRequest, match=message):
        load(copy, "transformer")
    with pytest.raises(InvalidRequest, match=message):
        load(copy, "transformer", configurations_only=True)


@pytest.mark.parametrize(
    ("dtype", "beside", "message"),
    [
        (torch.float8_e4m3fn, {}, r"transformer_blocks.0.attn.to_q \(float8_e4m3fn\); try"),
        (torch.int8, {"SCB": torch.ones(32)}, r"transformer_blocks.0.attn.to_q \(int8\); try"),
        (
            None,
            {"weight_scale": torch.ones(32)},
            r"transformer_blocks.0.attn.to_q \(with weight_scale\); try",
        ),
    ],
)
def test_checkpoint_is_refused_by_module_when_it_holds_quantized_weights(
    copy: Path, dtype: torch.dtype | None, beside: dict[str, torch.Tensor], message: str
) -> None:
    file, module = copy / "transformer/diffusion_pytorch_model.safetensors", "transformer_blocks.0.attn.to_q"
    stored = load_file(file)
    if dtype is not None:
        stored[f"{module}.weight"] = stored[f"{module}.weight"].to(dtype)
    save_file(
        stored | {f"{module}.{name}": tensor for name, tensor in beside.items()}, file, {"format": "pt"}
    )
    with pytest.raises(InvalidRequest, match=message):
        load(copy, "transformer")


def test_weights_may_lie_in_several_files(copy: Path) -> None:
    folder = copy / "transformer"
    stored = load_file(folder / "diffusion_pytorch_model.safetensors")
    (folder / "diffusion_pytorch_model.safetensors").unlink()
    names = [f"diffusion_pytorch_model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    index = {key: names[i % 3] for i, key in enumerate(stored)}
    for name in names:
        save_file({k: v for k, v in stored.items() if index[k] == name}, folder / name, {"format": "pt"})
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    load(copy, "transformer")


@pytest.mark.parametrize(
    ("preset", "blocks", "billions"), [("public", (20, 40), 12.9), ("public-6-blocks", (2, 4), 1.6)]
)
def test_public_preset_has_the_public_widths(preset: str, blocks: tuple[int, int], billions: float) -> None:
    config = FAMILY.presets[preset].configs["transformer/config.json"]
    with torch.device("meta"):
        network = HunyuanVideoFramepackTransformer3DModel.from_config(config)
    assert (len(network.transformer_blocks), len(network.single_transformer_blocks)) == blocks
    assert sum(weight.numel() for weight in network.parameters()) / 1e9 == pytest.approx(billions, abs=0.1)


def test_plan_of_a_public_preset_needs_no_weights(tmp_path: Path) -> None:
    write = FAMILY.presets["public-6-blocks"].write_empty
    assert write is not None
    write(tmp_path)
    transformer = planned(tmp_path, configurations_only=True)["transformer"]
    assert {tensor.name: tensor.shape for tensor in transformer.inputs}["image_embeds"] == (
        "batch",
        729,
        1152,
    )
    assert [axis.name for axis in transformer.axes if axis.max == 80] == ["token_height", "token_width"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ExportOptions]:
    """What the command asks of the export, which is not run."""
    found: list[ExportOptions] = []

    def note(_: object, options: ExportOptions, *__: object) -> ExportResult:
        found.append(options)
        return ExportResult((), (), placed=False)

    monkeypatch.setattr("slipway_export.run.run_export", note)
    return found


@pytest.mark.parametrize(
    ("kind", "component", "part", "subfolder"),
    [
        ("llama_text", "llama_text", "text_encoder", "text_encoder"),
        ("clip_text", "clip_text", "text_encoder_2", "text_encoder_2"),
        ("flux_redux", "siglip_image", "image_encoder", "image_encoder"),
        ("vae_decoder", "vae_decoder", "vae", "vae"),
        ("framepack_i2v", "transformer", "transformer", None),
    ],
)
def test_flags_of_the_report_are_understood_as_they_are_written(
    asked: list[ExportOptions], kind: str, component: str, part: str, subfolder: str | None
) -> None:
    flags = ["--model-path", "tencent/HunyuanVideo", "--model-type", kind, "--output-name", "out.onnx"]
    flags += ["--subfolder", subfolder] if subfolder else []
    assert run(["export", "framepack_i2v", *flags, "--quiet"]) == 0
    (options,) = asked
    assert (options.checkpoint, options.components, options.output) == ("", (component,), Path("out.onnx"))
    assert options.parts == {part: "tencent/HunyuanVideo" + (f"/{subfolder}" if subfolder else "")}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model-type", "vae", "--model-path", "x"], "component must be vae_encoder or vae_decoder"),
        (["--model-path", "x"], "model-path must be given with one --component of transformer, llama_text"),
        (["--subfolder", "vae", "--component", "vae_encoder"], "subfolder requires --model-path"),
        (
            ["--component", "llama_text", "--component", "clip_text", "--model-path", "x"],
            "got llama_text, clip_text",
        ),
        (
            ["--component", "vae_encoder", "--model-path", "x", "--checkpoint", "tiny"],
            "one of --checkpoint, --model-path, --model must be given, got several or none",
        ),
        (
            ["--component", "vae_encoder", "--model-path", "x", "--part", "vae=y"],
            "part vae must be given once",
        ),
        ([], "one of --checkpoint, --model-path, --model must be given"),
    ],
)
def test_flags_are_refused_with_what_replaces_them(
    capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert run(["export", "framepack_i2v", *flags, "--output", "out.onnx"]) == 2
    assert message in capsys.readouterr().err


def test_model_path_is_refused_when_a_familys_components_have_no_part_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--component", "vae_decoder", "--model-path", "x", "--output", "out.onnx"]
    assert run(["export", "wan_t2v", *flags]) == 2
    assert (
        "model-path must be given with another option; try --checkpoint for wan_t2v"
        in capsys.readouterr().err
    )


def test_parts_are_refused_without_a_checkpoint_when_a_familys_components_need_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["export", "wan_t2v", "--part", "vae=x", "--output", "out.onnx"]) == 2
    assert "one of --checkpoint, --model must be given, got several or none" in capsys.readouterr().err


def test_precision_is_refused_by_name_when_a_component_does_not_have_it(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--checkpoint", str(tiny), "--repository", str(tmp_path / "models")]
    assert run(["export", "framepack_i2v", *target, "--precision", "vae_decoder=int8"]) == 2
    refused = "precision of vae_decoder must be one of fp32, fp16, bf16 with engine onnxruntime, got int8"
    assert refused in capsys.readouterr().err
    alone = ["--precision", "int8", "--component", "vae_decoder"]
    assert run(["export", "framepack_i2v", *target, *alone]) == 2
    assert refused in capsys.readouterr().err
    # Asked for all, it leaves the VAE in float32.
    assert planned(tiny)["vae_decoder"].precision(Precision.INT8) is Precision.FP32


def test_claims_of_the_page_are_backed_by_tests_that_there_are() -> None:
    root = Path(__file__).resolve().parents[3]
    page = (root / "docs/reference/families/framepack_i2v.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {
        name
        for file in (root / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 10
    assert not named - there
