"""Matrix-Game's network: sizes of the public ones, blocks against the whole video, strict loading."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.stored_weights import stored_weights
from slipway_export.families.matrix_game.causal_wan.attention import Rotation
from slipway_export.families.matrix_game.causal_wan.cached import (
    BlockDenoiser,
    CrossAttention,
    Rebase,
    cache_names,
)
from slipway_export.families.matrix_game.causal_wan.config import BLOCK_FRAMES, POSITIONS, read_config
from slipway_export.families.matrix_game.causal_wan.inference import (
    MODES,
    Inference,
    inference_file,
    read_inference,
)
from slipway_export.families.matrix_game.causal_wan.network import CausalWan
from slipway_export.families.matrix_game.causal_wan.presets import randomize, write_denoiser
from slipway_export.families.matrix_game.causal_wan.tiny import public_config, tiny_config
from slipway_export.families.matrix_game.causal_wan.weights import load_network
from slipway_export.families.matrix_game.causal_wan.whole import Denoiser
from slipway_export.spec import Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

HEIGHT, WIDTH, VISUAL_DIM, VISUAL_TOKENS = 4, 6, 32, 5
TOKENS = HEIGHT * WIDTH // 4
BLOCKS = 8


def config_file(mode: str) -> str:
    return f"configs/distilled_model/{mode}/config.json"


def made(content: dict[str, Any]) -> CausalWan:
    network = CausalWan(read_config(content, "test"), VISUAL_DIM)
    randomize(network, 0)
    return network.eval().requires_grad_(False)


def foundation_config() -> dict[str, Any]:
    content = tiny_config("universal") | {"local_attn_size": -1}
    content["action_config"]["blocks"] = [0, 1, 2]
    return content


@pytest.fixture(scope="module", params=MODES)
def network(request: pytest.FixtureRequest) -> CausalWan:
    return made(tiny_config(request.param))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix_game")
    for mode in MODES:
        write_denoiser(folder, mode, 0, visual_dim=VISUAL_DIM)
    return folder


def video(network: CausalWan, frames: int, batch: int = 1) -> dict[str, Tensor]:
    """Inputs of a whole video, every frame at a timestep of its own."""
    random = torch.Generator().manual_seed(frames)

    def noise(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=random)

    action = network.config.action
    inputs = {
        "noisy_input": noise(16, frames, HEIGHT, WIDTH),
        "timestep": torch.rand(batch, frames, generator=random) * 1000,
        "visual_context": noise(VISUAL_TOKENS, VISUAL_DIM),
        "cond_concat": noise(20, frames, HEIGHT, WIDTH),
    }
    if action.enable_mouse:
        inputs["mouse_cond"] = noise(4 * frames - 3, 2)
    return inputs | {"keyboard_cond": noise(4 * frames - 3, action.keyboard_dim_in)}


def whole(network: CausalWan, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    flow, clean = Denoiser(network, 5.0)(*inputs.values())
    return flow, clean


def empty_caches(block: BlockDenoiser, batch: int = 1) -> list[Tensor]:
    config = block.network.config
    heads = {"self": (config.num_heads, config.head_dim)}
    action_heads = (config.action.heads_num, sum(config.action.rope_dim_list))
    shapes = []
    for name in block.names:
        kind = name.partition("_")[0]
        places = () if kind == "keyboard" else (TOKENS,)
        shapes.append((batch, block.held_frames, *places, *heads.get(kind, action_heads)))
    # Before the first block no value of them may be seen.
    return [torch.full(shape, 7.0) for shape in shapes]


def block_inputs(inputs: dict[str, Tensor], start: int) -> list[Tensor]:
    frames = slice(start, start + BLOCK_FRAMES)
    rows = torch.arange(4 * start - 12, 4 * start + 8).clamp(min=0)
    batch = len(inputs["timestep"])
    return [
        inputs["noisy_input"][:, :, frames],
        inputs["timestep"][:, frames],
        inputs["cond_concat"][:, :, frames],
        *(inputs[name][:, rows] for name in ("mouse_cond", "keyboard_cond") if name in inputs),
        torch.full((batch,), start),
    ]


@pytest.mark.parametrize(
    ("mode", "parameters"),
    [("universal", 1_619_242_304), ("gta_drive", 1_619_238_464), ("templerun", 1_508_715_584)],
)
def test_network_has_the_published_number_of_parameters(mode: str, parameters: int) -> None:
    with torch.device("meta"):
        network = CausalWan(read_config(public_config(mode), "public"))
    assert sum(p.numel() for p in network.parameters()) == parameters
    # Of these, what is made once for a world needs no more than the attention to the picture.
    crossing = CrossAttention(network)
    assert sum(p.numel() for p in crossing.parameters()) < 300e6


def test_blocks_equal_the_whole_video_beyond_the_first_eviction(network: CausalWan) -> None:
    inputs = video(network, BLOCKS * BLOCK_FRAMES, batch=2)
    expected, _ = whole(network, inputs)
    block = BlockDenoiser(network)
    cross, caches = CrossAttention(network)(inputs["visual_context"]), empty_caches(block, 2)
    for i in range(BLOCKS):
        start = i * BLOCK_FRAMES
        trial, *given = (each.clone() for each in block_inputs(inputs, start))
        # A run that does not commit leaves no trace.
        block(trial + 1, *given, *cross, *caches)
        flow, *caches = block(trial, *given, *cross, *caches)
        torch.testing.assert_close(flow, expected[:, :, start : start + BLOCK_FRAMES], rtol=0, atol=2e-5)
    assert len(caches) == len(cache_names(network.config))


def test_block_is_the_same_when_it_and_what_it_sees_are_at_an_earlier_place(network: CausalWan) -> None:
    inputs = video(network, 3 * BLOCK_FRAMES, batch=2)
    block, start = BlockDenoiser(network), POSITIONS - BLOCK_FRAMES
    cross, caches = CrossAttention(network)(inputs["visual_context"]), empty_caches(block, 2)
    *told, _ = block_inputs(inputs, 2 * BLOCK_FRAMES)

    def at(place: int, caches: list[Tensor]) -> list[Tensor]:
        out: list[Tensor] = block(*told, torch.full((2,), place), *cross, *caches)
        return out

    _, *caches = at(start - BLOCK_FRAMES, caches)
    expected, *_ = at(start, caches)
    by = torch.tensor([start - 21, start - 30])
    held, rebase = dict(zip(block.names, caches, strict=True)), Rebase(network.config)
    moved = rebase(by, *(held[name] for name in rebase.names))
    held |= dict(zip(rebase.names, moved, strict=True))
    found, *_ = block(*told, start - by, *cross, *held.values())
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    # Unmoved keys are further away than they were.
    assert (at(21, caches)[0] - expected).abs().max() > 1e-3


@pytest.mark.parametrize("frames", [1, 2, 4, 5])
def test_whole_video_of_any_length_begins_as_a_longer_one(network: CausalWan, frames: int) -> None:
    longer = video(network, 6)
    rows, full = 4 * frames - 3, frames // BLOCK_FRAMES * BLOCK_FRAMES
    inputs = {
        name: each[:, :, :frames] if each.ndim == 5 else each[:, : rows if name.endswith("cond") else frames]
        for name, each in longer.items()
    } | {"visual_context": longer["visual_context"]}
    flow, clean = whole(network, inputs)
    assert flow.shape == clean.shape == inputs["noisy_input"].shape
    expected, _ = whole(network, longer)
    torch.testing.assert_close(flow[:, :, :full], expected[:, :, :full], rtol=0, atol=2e-5)


def test_foundation_network_sees_all_frames_before_and_has_no_block() -> None:
    network = made(foundation_config())
    inputs = video(network, 9)
    flow, _ = whole(network, inputs)
    inputs["noisy_input"][:, :, 0] += 1
    assert (whole(network, inputs)[0] - flow)[:, :, -1].abs().max() > 1e-3
    with pytest.raises(InvalidRequest, match="local_attn_size must be above 3 .* got -1"):
        BlockDenoiser(network)


def test_later_frames_do_not_change_earlier_blocks(network: CausalWan) -> None:
    inputs = video(network, 9)
    flow, _ = whole(network, inputs)
    inputs["noisy_input"][:, :, 6:] += 1
    changed = (whole(network, inputs)[0] - flow).abs().amax(dim=(0, 1, 3, 4))
    assert changed[:6].max() == 0
    assert changed[6:].min() > 1e-3


@pytest.mark.parametrize("mode", MODES)
def test_every_input_of_the_preset_changes_the_flow(mode: str) -> None:
    network = made(tiny_config(mode))
    inputs = video(network, 3)
    flow, _ = whole(network, inputs)
    for name in inputs:
        other = inputs | {name: inputs[name].flip(-1)}
        assert (whole(network, other)[0] - flow).abs().max() > 1e-2, name


def test_clean_latents_follow_from_the_sigma_nearest_to_the_timestep(network: CausalWan) -> None:
    inputs = video(network, 3)
    inputs["timestep"] = torch.tensor([[1000.0, 908.84, 0.0]])
    flow, clean = whole(network, inputs)
    even = torch.tensor([1.0, 0.666, 0.001])
    sigma = (5 * even / (1 + 4 * even))[None, None, :, None, None]
    torch.testing.assert_close(clean, inputs["noisy_input"] - sigma * flow, rtol=0, atol=1e-5)


def test_rotation_is_exact_at_the_last_position() -> None:
    cos, sin = Rotation(44, 10_000.0, POSITIONS)(torch.tensor([POSITIONS - 1]))
    angles = [(POSITIONS - 1) / 10_000 ** (2 * j / 44) for j in range(22)]
    torch.testing.assert_close(cos[0], torch.tensor([math.cos(a) for a in angles]), rtol=0, atol=1e-7)
    torch.testing.assert_close(sin[0], torch.tensor([math.sin(a) for a in angles]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_loaded_network_equals_the_written_one(written: Path, mode: str) -> None:
    network = load_network(
        Checkpoint(written, "tiny"), config_file(mode), MODES[mode].weights, Precision.FP32, Loading.READ
    )
    stored = load_file(written / MODES[mode].weights)
    assert stored.keys() == {f"model.{key}" for key in network.state_dict()}
    for key, tensor in network.state_dict().items():
        assert torch.equal(tensor, stored[f"model.{key}"])
    assert network.visual_dim == VISUAL_DIM


def test_network_loads_when_no_key_has_the_prefix(written: Path, tmp_path: Path) -> None:
    network = _loaded_with(written, tmp_path, lambda state: _renamed(state, lambda key: key[len("model.") :]))
    assert isinstance(network, CausalWan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model.head.modulation"), r"missing keys model\.head\.modulation"),
        (lambda s: s.update({"model.extra": torch.zeros(1)}), r"unknown keys model\.extra"),
        (lambda s: s.update({"bare": torch.zeros(1)}), "unknown keys bare"),
        (
            lambda s: s.update({"model.head.modulation": torch.zeros(1, 2, 5)}),
            r"model\.head\.modulation must have shape \[1, 2, 96\], got \[1, 2, 5\]",
        ),
    ],
)
def test_loading_names_file_and_key_when_the_weights_do_not_fit(
    written: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], object], message: str
) -> None:
    def changed(state: dict[str, Tensor]) -> dict[str, Tensor]:
        change(state)
        return state

    with pytest.raises(InvalidRequest, match=f"base_distill.safetensors must have the keys.*{message}"):
        _loaded_with(written, tmp_path, changed)


def test_loading_is_refused_when_the_weights_are_missing_or_no_safetensors(
    written: Path, tmp_path: Path
) -> None:
    target = tmp_path / config_file("universal")
    target.parent.mkdir(parents=True)
    target.write_bytes((written / config_file("universal")).read_bytes())
    checkpoint, weights = Checkpoint(tmp_path, "given"), MODES["universal"].weights
    with pytest.raises(InvalidRequest, match=r"given: file .*base_distill.safetensors is missing"):
        load_network(checkpoint, config_file("universal"), weights, Precision.FP32, Loading.READ)
    (tmp_path / weights).parent.mkdir()
    (tmp_path / weights).write_bytes(b"no such file")
    with pytest.raises(InvalidRequest, match="must be a complete safetensors file"):
        load_network(checkpoint, config_file("universal"), weights, Precision.FP32, Loading.READ)


def test_loading_reads_no_weights_when_they_are_left_on_disk_or_out(written: Path) -> None:
    checkpoint, weights = Checkpoint(written, "tiny"), MODES["universal"].weights
    network = load_network(checkpoint, config_file("universal"), weights, Precision.FP16, Loading.ON_DISK)
    places = stored_weights(network)
    assert places.keys() == network.state_dict().keys()
    assert places["head.head.weight"].key == "model.head.head.weight"
    assert network.head.head.weight.dtype is torch.float16
    network = load_network(checkpoint, config_file("universal"), weights, Precision.FP32, Loading.META)
    assert all(weight.is_meta for weight in network.parameters())


def test_network_follows_from_its_configuration_when_that_is_enough(written: Path, tmp_path: Path) -> None:
    target = tmp_path / config_file("universal")
    target.parent.mkdir(parents=True)
    target.write_bytes((written / config_file("universal")).read_bytes())
    checkpoint = Checkpoint(tmp_path, "given", configurations_only=True)
    network = load_network(
        checkpoint, config_file("universal"), MODES["universal"].weights, Precision.FP32, Loading.ON_DISK
    )
    assert network.visual_dim == 1280


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "t2v"}, "model_type must be 'i2v', got 't2v'"),
        ({"depth": 3}, "depth must be left out, got 3"),
        ({"dim": "wide"}, "dim must be a whole number from 1, got 'wide'"),
        ({"eps": 0}, "eps must be a finite number above 0, got 0"),
        ({"local_attn_size": 2}, "local_attn_size must be -1, or 3 or more, got 2"),
        ({"num_heads": 5}, "dim must be a multiple of 10, got 96"),
        ({"freq_dim": 31}, "freq_dim must be even, got 31"),
        ({"in_dim": 16}, "in_dim must be above out_dim 16, got 16"),
        ({"action_config": None}, "action_config must be an object, got None"),
    ],
)
def test_config_names_what_no_such_network_has(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^here: .*{message}"):
        read_config(tiny_config("universal") | change, "here")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv_bias": True}, "action_config.qkv_bias must be False, got True"),
        ({"text_len": 512}, "action_config.text_len must be left out"),
        ({"blocks": [0, 3]}, r"action_config.blocks must be below num_layers 3, got \[0, 3\]"),
        ({"blocks": 2}, "action_config.blocks must be a list of whole numbers from 0, got 2"),
        ({"enable_mouse": 1}, "action_config.enable_mouse must be true or false, got 1"),
        ({"img_hidden_size": 8}, "action_config.img_hidden_size must be dim 96, got 8"),
        ({"mouse_qk_dim_list": [8, 8, 8]}, "action_config.mouse_qk_dim_list must be rope_dim_list"),
        (
            {"keyboard_hidden_dim": 64},
            "action_config.keyboard_hidden_dim must be heads_num times .* 128, got 64",
        ),
    ],
)
def test_config_names_what_no_such_action_module_has(change: dict[str, Any], message: str) -> None:
    content = tiny_config("universal")
    content["action_config"] |= change
    with pytest.raises(InvalidRequest, match=message):
        read_config(content, "here")


def test_config_names_a_size_that_is_missing() -> None:
    content = tiny_config("universal")
    del content["action_config"]["keyboard_dim_in"]
    with pytest.raises(InvalidRequest, match="action_config.keyboard_dim_in must be given, got none"):
        read_config(content, "here")


@pytest.mark.parametrize("mode", MODES)
def test_inference_file_of_a_preset_says_where_its_config_is(written: Path, mode: str) -> None:
    read = read_inference(written / inference_file(mode), "yaml")
    steps = (1000, 750, 500, 250) if mode == "templerun" else (1000, 666, 333)
    assert read == Inference(mode, steps, 5.0, f"configs/distilled_model/{mode}", 16, 6, 10)
    assert (written / read.model_config / "config.json").is_file()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "chess"}, "mode must be one of universal, gta_drive, templerun, got 'chess'"),
        ({"denoising_step_list": [1000, 1000]}, "denoising_step_list must descend"),
        ({"image_or_video_shape": [1, 16, 15, 7, 10]}, "image_or_video_shape must be"),
        (
            {"model_kwargs": {"timestep_shift": 0, "model_config": "c"}},
            "timestep_shift must be a finite number above 0",
        ),
        (
            {"model_kwargs": {"timestep_shift": 5.0, "model_config": "../c"}},
            "model_config must be a folder within",
        ),
        (
            {"model_kwargs": {"timestep_shift": 5.0, "model_config": "c", "x": 1}},
            "model_kwargs.x must be left out",
        ),
        ({"num_frame_per_block": 1}, "num_frame_per_block must be 3, got 1"),
        ({"guidance": 3}, "guidance must be left out"),
    ],
)
def test_inference_file_names_what_no_such_file_has(
    written: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    content = yaml.safe_load((written / inference_file("universal")).read_text())
    path = tmp_path / "inference.yaml"
    path.write_text(yaml.safe_dump(content | change))
    with pytest.raises(InvalidRequest, match=message):
        read_inference(path, "yaml")


@pytest.mark.parametrize(
    ("content", "message"), [(None, "must exist"), ("a: [", "must be YAML"), ("- 1", "must hold a mapping")]
)
def test_inference_file_is_refused_when_it_is_none(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "inference.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidRequest, match=message):
        read_inference(path, "yaml")


def _renamed(state: dict[str, Tensor], rename: Callable[[str], str]) -> dict[str, Tensor]:
    return {rename(key): tensor for key, tensor in state.items()}


def _loaded_with(
    written: Path, folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> CausalWan:
    """Load the network of the universal mode with other weights."""
    weights = folder / MODES["universal"].weights
    weights.parent.mkdir()
    save_file(change(load_file(written / MODES["universal"].weights)), weights)
    config = folder / config_file("universal")
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(tiny_config("universal")))
    return load_network(
        Checkpoint(folder, "given"),
        config_file("universal"),
        MODES["universal"].weights,
        Precision.FP32,
        Loading.READ,
    )
