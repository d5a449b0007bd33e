"""What the plan of a checkpoint accepts, its export accepts: no configuration passes the plan alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fuzzing import EXAMPLES
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.families.airimu.presets import write_checkpoint as write_airimu
from slipway_export.families.framepack_i2v import presets as framepack
from slipway_export.families.framepack_i2v.random_checkpoint import write_checkpoint as write_framepack
from slipway_export.families.matrix_game.causal_wan.presets import write_denoiser
from slipway_export.families.matrix_game.causal_wan.tiny import tiny_config, tiny_inference
from slipway_export.families.matrix_game.random_vision import write_clip, write_vae
from slipway_export.families.matrix_game.vision import CLIP_FILE, VAE_FILE
from slipway_export.families.wakeword.family import (
    CONFIG_FILE,
    PREPROCESSOR_FILE,
    TINY_CONFIG,
    TINY_PREPROCESSOR,
)
from slipway_export.families.wakeword.presets import write_backbone
from slipway_export.families.wan_t2v import presets as wan
from slipway_export.families.wan_t2v.random_checkpoint import write_checkpoint as write_wan
from slipway_export.run import plan_of
from slipway_export.sizing.cost import counted
from slipway_export.spec import Engine, Plan
from slipway_export.verification.comparison import compute_reference, load_reference
from slipway_serving.families.wan_t2v.facts import CHANNELS, FIRST_FRAME
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError

Configs = Mapping[str, Mapping[str, Any]]
Write = Callable[[Path, Configs], None]
WORLD, INFERENCE = tiny_config("universal"), tiny_inference("universal")


def write_world(folder: Path, configs: Configs) -> None:
    """Write Matrix-Game's networks; sizes of the VAE and of the CLIP are in their weights alone."""
    content = {**configs["config"], "action_config": configs["action"]}
    inference = {**configs["inference"], "model_kwargs": configs["model"]}
    write_denoiser(folder, "universal", 0, content=content, inference=inference)
    write_vae(folder / VAE_FILE, 0, **configs["vae"])
    write_clip(folder / CLIP_FILE, 0, **configs["clip"])


def write_imu(folder: Path, configs: Configs) -> None:
    write_airimu(folder, json.dumps(configs), 0)


# A checkpoint of each family whose weights can be written for any configuration.
CHECKPOINTS: dict[str, tuple[str, Configs, Write]] = {
    "wan_t2v": ("wan_t2v", wan.TINY.configs, lambda folder, configs: write_wan(folder, configs, 0)),
    "wan_ti2v": (
        "wan_t2v",
        wan.TINY_TI2V.configs,
        lambda folder, configs: write_wan(folder, configs, 0, conditioning=FIRST_FRAME),
    ),
    "wan_i2v": (
        "wan_t2v",
        wan.TINY_I2V.configs,
        lambda folder, configs: write_wan(folder, configs, 0, conditioning=CHANNELS),
    ),
    "framepack_i2v": (
        "framepack_i2v",
        framepack.TINY.configs,
        lambda folder, configs: write_framepack(folder, configs, 0),
    ),
    "wakeword": (
        "wakeword",
        {CONFIG_FILE: TINY_CONFIG, PREPROCESSOR_FILE: TINY_PREPROCESSOR},
        lambda folder, configs: write_backbone(folder, configs[CONFIG_FILE], configs[PREPROCESSOR_FILE], 0),
    ),
    "matrix_game": (
        "matrix_game",
        {
            "config": {key: value for key, value in WORLD.items() if key != "action_config"},
            "action": WORLD["action_config"],
            "inference": {key: value for key, value in INFERENCE.items() if key != "model_kwargs"},
            "model": INFERENCE["model_kwargs"],
            "vae": {"base_dim": 8, "num_res_blocks": 1, "temperal_downsample": [False, True, True]},
            "clip": {"channels": 160, "blocks": 3, "image_px": 224, "patch_px": 14},
        },
        write_world,
    ),
    "codenet": (
        "airimu",
        {
            "dataset": {"collate": "padding9"},
            "train": {"network": "codenet", "propcov": True, "acc_std": 0.1, "gyro_std": 0.017},
        },
        write_imu,
    ),
    "codenetkitti": (
        "airimu",
        {
            "dataset": {"collate": "base"},
            "train": {"network": "codenetkitti", "propcov": True, "acc_std": 0.1},
        },
        write_imu,
    ),
}
few = settings(
    max_examples=max(4, EXAMPLES // 20),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def planned(name: str, folder: Path) -> Plan:
    """Accept or refuse as `--plan` does: by the configurations, and by networks without their weights."""
    family = family_named(name)
    with open_checkpoint(family, str(folder), configurations_only=True) as checkpoint:
        plan = plan_of(family, checkpoint, None, axes_of(family, checkpoint, {}), Engine.ONNXRUNTIME)
        for component in plan.components:
            counted(component, [component.points()["min"]])
        return plan


def exported(name: str, folder: Path) -> None:
    """Run each network with its weights, as an export does before it makes the graph."""
    family = family_named(name)
    with open_checkpoint(family, str(folder)) as checkpoint:
        plan = plan_of(family, checkpoint, None, axes_of(family, checkpoint, {}), Engine.ONNXRUNTIME)
        for component in plan.components:
            compute_reference(component, load_reference(component), {"min": component.points()["min"]})


def variants(value: Any) -> list[Any]:
    """Return other values of the type of a configuration's entry."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value + 1, max(value // 2, 1)]
    if isinstance(value, float):
        return [2 * value, 0.0, -value]
    if isinstance(value, list) and value:
        return [value[:-1], [*value, value[-1]], value[::-1]]
    return []


def changes(configs: Configs) -> list[tuple[str, str, Any]]:
    return [
        (file, key, other)
        for file, content in configs.items()
        for key, value in content.items()
        for other in variants(value)
    ]


# One kind of Wan's checkpoints is enough for each change; the others come with the long run.
LONG = ("wan_t2v", "wan_i2v")


@pytest.mark.parametrize(
    "checkpoint",
    [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in CHECKPOINTS],
)
def test_export_runs_what_the_plan_accepts_when_configurations_are_changed(
    checkpoint: str, tmp_path: Path
) -> None:
    name, configs, write = CHECKPOINTS[checkpoint]

    @few
    @given(st.lists(st.sampled_from(changes(configs)), min_size=1, max_size=2))
    def holds(changed: list[tuple[str, str, Any]]) -> None:
        folder = tmp_path / "checkpoint"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        made = {file: dict(content) for file, content in configs.items()}
        for file, key, value in changed:
            made[file][key] = value
        try:
            write(folder, made)
        except Exception:  # noqa: BLE001 - the libraries cannot build such a network at all
            assume(False)
        try:
            planned(name, folder)
        except SlipwayError as error:
            assert str(error)
            return
        exported(name, folder)

    holds()


@pytest.mark.parametrize(
    ("checkpoint", "part", "other", "refusal"),
    [
        ("wan_t2v", "vae", "wan_ti2v", "in_channels must be 48 as z_dim of vae"),
        ("wan_ti2v", "vae", "wan_t2v", "in_channels must be 16 as z_dim of vae"),
        ("wan_i2v", "vae", "wan_ti2v", "in_channels must be 100 for twice z_dim of vae"),
        ("wan_i2v", "transformer_2", "wan_t2v", "in_channels must be 36 for twice z_dim of vae"),
    ],
)
def test_plan_refuses_parts_of_another_kind_of_checkpoint(
    tmp_path: Path, checkpoint: str, part: str, other: str, refusal: str
) -> None:
    for each in (checkpoint, other):
        _, configs, write = CHECKPOINTS[each]
        (tmp_path / each).mkdir()
        write(tmp_path / each, configs)
    shutil.rmtree(tmp_path / checkpoint / part)
    shutil.copytree(tmp_path / other / part, tmp_path / checkpoint / part)
    with pytest.raises(InvalidRequest, match=refusal):
        planned("wan_t2v", tmp_path / checkpoint)


@pytest.mark.parametrize(
    ("checkpoint", "file", "key", "value", "refusal"),
    [
        ("wan_t2v", "transformer/config.json", "out_channels", 32, "out_channels must be 16 as z_dim of vae"),
        ("wan_i2v", "transformer/config.json", "out_channels", None, "out_channels must be 16 .* got 36"),
        (
            "framepack_i2v",
            "transformer/config.json",
            "out_channels",
            32,
            "out_channels must be 16 as latent_ch",
        ),
    ],
)
def test_plan_refuses_a_denoiser_whose_answer_the_pipeline_cannot_use(
    tmp_path: Path, checkpoint: str, file: str, key: str, value: Any, refusal: str
) -> None:
    name, configs, write = CHECKPOINTS[checkpoint]
    write(tmp_path, configs)
    path = tmp_path / file
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(InvalidRequest, match=refusal):
        planned(name, tmp_path)
