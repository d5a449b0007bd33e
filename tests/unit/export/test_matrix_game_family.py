"""The family `matrix_game`: the plan of each mode, what is refused, and snapshots that are no world."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.matrix_game.causal_wan.inference import MODES, inference_file
from slipway_export.families.matrix_game.causal_wan.tiny import config_folder
from slipway_export.families.matrix_game.family import FAMILY, facts_of
from slipway_export.families.matrix_game.random_vision import write_clip, write_vae
from slipway_export.families.matrix_game.vision import CLIP_FILE, VAE_FILE
from slipway_export.spec import Component, Plan, TensorSpec
from slipway_serving.diffusion.noise import Noise
from slipway_serving.families.matrix_game.facts import FACTS_FILE, Facts
from slipway_serving.families.matrix_game.request import REQUESTS
from slipway_serving.families.matrix_game.snapshot import restore_world
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import Array, fields_of

# Of the tiny checkpoint: height and width of latents, features of a picture, heads, tokens of a latent frame.
PLANE, VISUAL, HEADS, ACTION_HEADS, TOKENS = (6, 10), (257, 160), (2, 48), (2, 64), 15
HELD = {"universal": 3, "gta_drive": 1, "templerun": 3}
KEYS = {"universal": 4, "gta_drive": 2, "templerun": 7}
MICE = ("universal", "gta_drive")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint, as `slipway checkpoint matrix_game` writes it. Read only."""
    folder = tmp_path_factory.mktemp("matrix_game")
    FAMILY.presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture(scope="module")
def plans(tiny: Path) -> dict[str, Plan]:
    """What the modes of the tiny checkpoint become."""
    return {mode: plan_of(tiny, mode) for mode in MODES}


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "checkpoint"))


def plan_of(folder: Path, mode: str, *, configurations_only: bool = False) -> Plan:
    family = FAMILY.variant(mode)
    with open_checkpoint(family, str(folder), configurations_only=configurations_only) as checkpoint:
        return family.plan(checkpoint, axes_of(family, checkpoint, {}))


def shapes(tensors: tuple[TensorSpec, ...]) -> dict[str, tuple[int | str, ...]]:
    return {tensor.name: tensor.shape for tensor in tensors}


def by_label(plan: Plan) -> dict[str, Component]:
    return {component.label: component for component in plan.components}


def edit(path: Path, **changes: Any) -> None:
    """Change entries of a JSON or YAML file."""
    read = json.loads if path.suffix == ".json" else yaml.safe_load
    content = read(path.read_text())
    path.write_text(json.dumps(content | changes))


@pytest.mark.parametrize("mode", MODES)
def test_plan_has_the_graphs_of_a_mode(plans: dict[str, Plan], mode: str) -> None:
    plan = plans[mode]
    assert [component.label for component in plan.components] == [
        f"{mode}_denoiser",
        f"{mode}/cross_attention",
        f"{mode}/block_denoiser",
        f"{mode}/rebase",
        "image_encoder",
        "vae_encoder",
        "vae_decoder/first",
        "vae_decoder/next",
    ]
    assert [model.name for model in plan.authored] == ["matrix_game_vae_decoder", f"matrix_game_{mode}"]
    assert [run.next.label for run in plan.stepped] == [f"{mode}/block_denoiser", "vae_decoder/next"]


@pytest.mark.parametrize("mode", MODES)
def test_world_takes_the_actions_of_its_mode(plans: dict[str, Plan], mode: str) -> None:
    request = plans[mode].authored[-1].request
    assert request is REQUESTS[mode] and request.turn is not None
    arrays = [field for field in fields_of(request.turn) if isinstance(field.rule, Array)]
    widths = {field.name: field.shape[-1] for field in arrays}
    block = by_label(plans[mode])[f"{mode}/block_denoiser"]
    assert widths == {name: shape[-1] for name, shape in shapes(block.inputs).items() if name in widths}
    assert set(widths) == {"keyboard_cond"} | ({"mouse_cond"} if mode in MICE else set())


@pytest.mark.parametrize("mode", MODES)
def test_denoiser_has_the_tensors_of_upstreams_exporter(plans: dict[str, Plan], mode: str) -> None:
    denoiser = by_label(plans[mode])[f"{mode}_denoiser"]
    rows = "4 * latent_frames - 3"
    actions = {"mouse_cond": ("batch", rows, 2)} if mode in MICE else {}
    assert shapes(denoiser.inputs) == {
        "noisy_input": ("batch", 16, "latent_frames", *PLANE),
        "timestep": ("batch", "latent_frames"),
        "visual_context": ("batch", *VISUAL),
        "cond_concat": ("batch", 20, "latent_frames", *PLANE),
        **actions,
        "keyboard_cond": ("batch", rows, KEYS[mode]),
    }
    assert shapes(denoiser.outputs) == dict.fromkeys(
        ("flow_pred", "pred_x0"), ("batch", 16, "latent_frames", *PLANE)
    )
    assert [(axis.name, axis.min, axis.opt, axis.max) for axis in denoiser.axes] == [
        ("batch", 1, 1, 2),
        ("latent_frames", 1, 4, 9),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_block_denoiser_carries_its_caches(plans: dict[str, Plan], mode: str) -> None:
    plan = plans[mode]
    block = by_label(plan)[f"{mode}/block_denoiser"]
    given, held = shapes(block.inputs), HELD[mode]
    assert given["noisy_input"] == ("batch", 16, 3, *PLANE)
    assert given["keyboard_cond"] == ("batch", 20, KEYS[mode])
    assert ("mouse_cond" in given) == (mode in MICE)
    assert given["cross_values_02"] == ("batch", VISUAL[0], *HEADS)
    assert given["self_keys_02"] == ("batch", held, TOKENS, *HEADS)
    assert given["keyboard_values_01"] == ("batch", held, *ACTION_HEADS)
    assert given.get("mouse_keys_01") == (("batch", held, TOKENS, *ACTION_HEADS) if mode in MICE else None)
    (run, _) = plan.stepped
    caches = 6 + 4 * (1 + (mode in MICE))
    assert len(run.carried) == caches == len(block.outputs) - 1
    assert {tensor.initial for tensor in run.carried} == {0.0}
    same_at_each_step = given.keys() - {tensor.name for tensor in run.carried} - run.inputs.keys()
    assert same_at_each_step == {name for name in given if name.startswith("cross_")}
    crossed = by_label(plan)[f"{mode}/cross_attention"]
    assert shapes(crossed.outputs).items() <= given.items()


@pytest.mark.parametrize("mode", MODES)
def test_facts_say_what_a_served_world_must_know(
    tiny: Path, plans: dict[str, Plan], tmp_path: Path, mode: str
) -> None:
    facts = facts_of(Checkpoint(tiny, "tiny"), mode)
    (tmp_path / FACTS_FILE).write_bytes(facts.to_json())
    assert Facts.read(tmp_path) == facts
    assert facts.mode == mode
    assert facts.steps == ((1000, 750, 500, 250) if mode == "templerun" else (1000, 666, 333))
    assert facts.timestep_shift == 5.0
    assert (facts.latents.height, facts.latents.width, facts.picture_px) == (*PLANE, (48, 80))
    assert (facts.latents.channels, facts.latents.mask_channels, facts.latents.held_frames) == (
        16, 4, HELD[mode],
    )  # fmt: skip
    assert list(facts.actions.widths.items())[-1] == ("keyboard_cond", KEYS[mode])
    assert ("mouse_cond" in facts.actions.widths) == (mode in MICE)
    assert (facts.actions.before, facts.actions.rows) == (12, 20)
    plan = plans[mode]
    models = {f"{FAMILY.name}_{component.name}" for component in plan.components}
    assert set(vars(facts.models).values()) == models - {
        f"matrix_game_{mode}_denoiser",
        f"matrix_game_{mode}",
    }
    placed = next(model for model in plan.authored if model.name == f"matrix_game_{mode}")
    assert placed.files == {f"1/{FACTS_FILE}": facts.to_json()}
    encoder = by_label(plan)["vae_encoder"]
    assert encoder.outputs[0].at(encoder.points()["opt"])[2] == facts.latents.picture_frames


def test_facts_are_refused_when_the_picture_is_not_as_the_latents(tiny: Path, tmp_path: Path) -> None:
    content = json.loads(facts_of(Checkpoint(tiny, "tiny"), "universal").to_json())
    (tmp_path / FACTS_FILE).write_text(json.dumps(content | {"picture_px": [48, 48]}))
    with pytest.raises(InvalidRequest, match="picture_px must have the aspect of 6 x 10 latents"):
        Facts.read(tmp_path)


def test_family_itself_is_the_universal_mode(tiny: Path, plans: dict[str, Plan]) -> None:
    with open_checkpoint(FAMILY, str(tiny)) as checkpoint:
        own = FAMILY.plan(checkpoint, axes_of(FAMILY, checkpoint, {}))
    labels = [component.label for component in own.components]
    assert labels == [component.label for component in plans["universal"].components]


def test_mode_is_refused_when_there_is_none_of_its_name() -> None:
    with pytest.raises(InvalidRequest, match="must be universal, gta_drive, templerun, got 'racing'"):
        FAMILY.variant("racing")


def test_mode_needs_its_own_files_only(copy: Path) -> None:
    for mode in ("universal", "templerun"):
        (copy / inference_file(mode)).unlink()
        (copy / MODES[mode].weights).unlink()
        shutil.rmtree(copy / config_folder(mode))
    assert plan_of(copy, "gta_drive").components
    with pytest.raises(InvalidRequest, match=f"{inference_file('templerun')}, .* must exist for matrix_game"):
        plan_of(copy, "templerun")


@pytest.mark.parametrize("file", [VAE_FILE, CLIP_FILE, MODES["universal"].weights])
def test_folder_is_refused_when_a_file_is_missing(copy: Path, file: str) -> None:
    (copy / file).unlink()
    with pytest.raises(InvalidRequest, match=f"{file} must exist"):
        plan_of(copy, "universal")


def test_plan_needs_no_weights_of_the_network_when_configurations_are_enough(copy: Path) -> None:
    (copy / MODES["universal"].weights).unlink()
    for file in (VAE_FILE, CLIP_FILE):
        (copy / file).unlink()
    write_vae(copy / VAE_FILE, 0)
    write_clip(copy / CLIP_FILE, 0, channels=1280, blocks=2, image_px=224)
    denoiser = by_label(plan_of(copy, "universal", configurations_only=True))["universal_denoiser"]
    assert shapes(denoiser.inputs)["visual_context"] == ("batch", 257, 1280)


def test_configuration_is_refused_when_it_is_of_another_mode(copy: Path) -> None:
    shutil.copy(copy / inference_file("gta_drive"), copy / inference_file("universal"))
    with pytest.raises(InvalidRequest, match="mode must be universal, got gta_drive; try --mode gta_drive"):
        plan_of(copy, "universal")


def test_network_is_refused_when_it_is_of_another_mode(copy: Path) -> None:
    place = f"{config_folder('templerun')}/config.json"
    shutil.copy(copy / config_folder("gta_drive") / "config.json", copy / place)
    with pytest.raises(InvalidRequest) as refused:
        plan_of(copy, "templerun")
    assert f"{place}: action_config.keyboard_dim_in must be 7 in mode templerun, got 2" in str(refused.value)
    assert "action_config.enable_mouse must be False in mode templerun, got True" in str(refused.value)


def test_network_is_refused_when_its_latents_are_not_the_yamls(copy: Path) -> None:
    edit(copy / inference_file("universal"), image_or_video_shape=[1, 8, 15, 6, 10])
    with pytest.raises(InvalidRequest, match="out_dim must be 8 in mode universal, got 16"):
        plan_of(copy, "universal")


def test_clip_is_refused_when_the_network_takes_other_features(copy: Path) -> None:
    write_clip(copy / CLIP_FILE, 0)
    with pytest.raises(InvalidRequest, match=r"features must be \[257, 160\] as in .*, got \[5, 160\]"):
        plan_of(copy, "universal")


def test_vae_is_refused_when_a_latent_has_other_frames(copy: Path) -> None:
    write_vae(copy / VAE_FILE, 0, temperal_downsample=(False, False, True))
    with pytest.raises(InvalidRequest, match="frames of a latent frame must be 4 as in .*, got 2"):
        plan_of(copy, "universal")


def test_plan_is_of_whole_videos_only_when_the_network_keeps_no_window(copy: Path) -> None:
    edit(copy / config_folder("universal") / "config.json", local_attn_size=-1)
    plan = plan_of(copy, "universal")
    assert "universal_denoiser" in by_label(plan)
    assert not {"universal/block_denoiser", "universal/cross_attention"} & by_label(plan).keys()
    assert [model.name for model in plan.authored] == ["matrix_game_vae_decoder"]
    with pytest.raises(InvalidRequest, match="local_attn_size must be above 3"):
        facts_of(Checkpoint(copy, "copy"), "universal")


def test_public_sizes_are_planned_without_weights(tmp_path: Path) -> None:
    write = FAMILY.presets["public"].write_empty
    assert write is not None
    write(tmp_path)
    components = by_label(plan_of(tmp_path, "universal", configurations_only=True))
    # 1.6 B in bfloat16, 0.6 B and 0.13 B in float32, of which the disk has the headers.
    assert sum(file.stat().st_blocks * 512 for file in tmp_path.rglob("*") if file.is_file()) < 2**20
    block = shapes(components["universal/block_denoiser"].inputs)
    assert block["noisy_input"] == ("batch", 16, 3, 44, 80)
    assert block["self_keys_29"] == ("batch", 3, 880, 12, 128)
    decoder = components["vae_decoder/next"]
    assert decoder.outputs[0].at(decoder.points()["opt"])[-2:] == (352, 640)


def test_sizes_follow_the_yaml(copy: Path) -> None:
    edit(copy / inference_file("universal"), image_or_video_shape=[1, 16, 15, 8, 4])
    labels = by_label(plan_of(copy, "universal"))
    assert shapes(labels["universal_denoiser"].outputs)["flow_pred"][3:] == (8, 4)
    assert shapes(labels["universal/block_denoiser"].inputs)["self_keys_00"][2] == 8
    encoder = labels["vae_encoder"]
    assert encoder.inputs[0].at(encoder.points()["max"]) == (1, 3, 64, 32)


def hostile(**changes: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    said = {"blocks": 1, "position": 3} | {k: v for k, v in changes.items() if k in ("blocks", "position")}
    arrays = {"picture": np.zeros((1, 16, 3, 4, 4), np.float32), "noise": Noise(0).state}
    return said, arrays | {k: v for k, v in changes.items() if k in arrays}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"blocks": 10**400}, "m: restore must describe a world of 1 to 89478485 blocks, got 1000"),
        ({"blocks": 0}, "must describe a world of 1 to 89478485 blocks, got 0"),
        ({"blocks": True}, "must describe a world between two blocks, got blocks True at position 3"),
        ({"blocks": [1]}, r"must describe a world between two blocks, got blocks \[1\] at position 3"),
        ({"position": 2**70}, "must describe a world between two blocks, got blocks 1 at position"),
        ({"position": -3}, "must describe a world between two blocks, got blocks 1 at position -3"),
        ({"picture": np.full((1, 16), np.nan, np.float32)}, "of at most 1e.06, got others in picture"),
        ({"picture": np.full((1, 16), -np.inf, np.float32)}, "got others in picture"),
        ({"picture": np.full((1, 16), 3e38, np.float32)}, "got others in picture"),
        ({"noise": np.full_like(Noise(0).state, 255)}, "must contain the state of a noise generator, got"),
    ],
)  # fmt: skip
def test_snapshot_is_refused_when_it_is_no_world(tiny: Path, changes: dict[str, Any], problem: str) -> None:
    facts = facts_of(Checkpoint(tiny, "tiny"), "universal")
    nothing_placed: Any = None
    with pytest.raises(InvalidRequest, match=problem) as refusal:
        restore_world(*hostile(**changes), facts, nothing_placed, "m")
    assert len(str(refusal.value)) < 500


def test_first_picture_of_a_checkpoint_is_an_example_when_it_is_small(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "with_picture"
    shutil.copytree(tiny, folder, symlinks=True)
    (folder / "universal.png").write_bytes(b"picture")
    planned = {each.name: each for each in plan_of(folder, "universal").authored}
    assert planned["matrix_game_universal"].examples == {"image": "cGljdHVyZQ=="}
    (folder / "universal.png").write_bytes(bytes(65_537))
    planned = {each.name: each for each in plan_of(folder, "universal").authored}
    assert planned["matrix_game_universal"].examples == {}
