"""Checkpoints under other names or in other containers are read, or refused with a command that works."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.families.airimu.network import load_network
from slipway_export.families.wakeword.head_file import read_head
from slipway_serving.families.wakeword.words import check_word
from slipway_serving.protocol.errors import InvalidRequest

AIRIMU, WAN, WORLD = (family_named(name) for name in ("airimu", "wan_t2v", "matrix_game"))
WEIGHTS = "ckpt/best_model.ckpt"


@pytest.fixture
def imu(tmp_path: Path) -> Path:
    """A tiny AirIMU checkpoint, to be changed."""
    folder = tmp_path / "imu"
    folder.mkdir()
    AIRIMU.presets["tiny"].write(folder, 0)
    return folder


def refusal(source: Path | str, family: Any = AIRIMU, **files: Path) -> str:
    with (
        pytest.raises(InvalidRequest) as refused,
        open_checkpoint(family, str(source), files=files),
    ):
        pass
    return str(refused.value)


State = Mapping[str, Any]


@pytest.mark.parametrize(
    "pack",
    [
        lambda state: state,
        lambda state: {"model_state_dict": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {
            "state_dict": {
                "criterion.weight": torch.ones(2),
                **{f"model.{key}": value for key, value in state.items()},
            },
            "pytorch-lightning_version": "2.5.0",
            "hparams_name": "kwargs",
        },
        lambda state: {"model": {f"_orig_mod.module.{key}": value for key, value in state.items()}},
        lambda state: {"model_state_dict": state, "metrics": np.zeros((2, 3)), "best": np.float64(0.5)},
    ],
    ids=["bare", "DataParallel", "Lightning", "compiled", "arrays"],
)
def test_weights_are_read_when_a_training_loop_packed_them(imu: Path, pack: Callable[[State], State]) -> None:
    expected = load_network(imu, "here").state_dict()
    torch.save(pack(dict(expected)), imu / WEIGHTS)
    loaded = load_network(imu, "here").state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[key], value) for key, value in expected.items())


def test_first_keys_are_named_when_a_file_has_no_weights(imu: Path) -> None:
    torch.save({f"entry_{index}": index for index in range(100)}, imu / WEIGHTS)
    with pytest.raises(InvalidRequest, match="got entry_0, entry_1, entry_2, entry_3, entry_4 and 95 more"):
        load_network(imu, "here")


def test_options_are_named_when_files_have_other_names(imu: Path) -> None:
    (imu / WEIGHTS).rename(imu / "ckpt/newest.ckpt")
    (imu / "codenet.conf").rename(imu / "mine.conf")
    text = refusal(imu)
    options = f"try --conf {imu}/mine.conf --ckpt {imu}/ckpt/newest.ckpt"
    assert text.endswith(options)
    files = {"conf": imu / "mine.conf", "ckpt": imu / "ckpt/newest.ckpt"}
    with open_checkpoint(AIRIMU, "", files=files) as checkpoint:
        load_network(checkpoint.path, checkpoint.source)


def test_includes_are_blamed_only_when_the_entry_is_missing(imu: Path) -> None:
    (imu / "codenet.conf").write_text("train: { network: identity, propcov: True }\n")
    with pytest.raises(InvalidRequest, match="got 'identity'; no other network is supported"):
        load_network(imu, "here")
    (imu / "codenet.conf").write_text("train: { propcov: True }\n")
    with pytest.raises(
        InvalidRequest, match="got None; includes are not followed, try the entry in the file"
    ):
        load_network(imu, "here")


def test_single_file_as_a_checkpoint_is_refused_with_the_options_that_take_it(tmp_path: Path) -> None:
    file = tmp_path / "wan2.2_t2v_high_noise_14B_fp16.safetensors"
    file.write_bytes(b"")
    text = refusal(file, WAN)
    assert f"got the file {file}; try --part NAME={file}, where NAME is one of " in text
    assert "transformer" in text
    assert refusal(file).endswith("try --conf FILE --ckpt FILE")
    assert refusal("", WAN, ckpt=file).startswith(f"wan_t2v: --ckpt must be left out, got {file}; try --part")


def test_world_without_configs_is_read_with_slipways_own(tmp_path: Path) -> None:
    folder = tmp_path / "world"
    write = WORLD.presets["public"].write_empty
    assert write is not None
    write(folder)
    with open_checkpoint(WORLD, str(folder), configurations_only=True) as checkpoint:
        upstream = checkpoint.config("configs/distilled_model/universal/config.json")
    shutil.rmtree(folder / "configs")
    with open_checkpoint(WORLD, str(folder), configurations_only=True) as checkpoint:
        assert checkpoint.config("configs/distilled_model/universal/config.json") == upstream
        with checkpoint.recording() as record:
            checkpoint.config("configs/distilled_model/universal/config.json")
        assert record.content == {"configs/distilled_model/universal/config.json"}


def test_file_options_name_the_folder_when_configs_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "base_distill.safetensors"
    file.write_bytes(b"")
    text = refusal("", WORLD, **{"checkpoint-path": file})
    assert re.search(r"--config-path must be a file, got configs/.*; try --checkpoint with the folder", text)


def test_checkpoints_folder_is_not_a_bare_dot_in_messages(tmp_path: Path) -> None:
    family = family_named("wakeword")
    family.presets["tiny"].write(tmp_path / "ast", 0)
    for file in (tmp_path / "ast").rglob("*.safetensors"):
        file.unlink()
    with (
        pytest.raises(InvalidRequest) as refused,
        open_checkpoint(family, str(tmp_path / "ast")) as checkpoint,
    ):
        checkpoint.weight_shapes(".")
    assert ": ." not in str(refused.value)


def test_arrays_in_a_heads_metrics_are_read(tmp_path: Path) -> None:
    head = family_named("wakeword_head")
    head.presets["tiny"].write(tmp_path, 0)
    (path,) = tmp_path.rglob("*.pt")
    content = torch.load(path, weights_only=True)
    content["metrics"] = {"roc": np.linspace(0, 1, 3), "auc": np.float32(0.5), "counts": [np.int64(3)]}
    torch.save(content, path)
    assert read_head(path, "here").more["metrics"] == {"roc": [0.0, 0.5, 1.0], "auc": 0.5, "counts": [3]}


@pytest.mark.parametrize(
    ("text", "name"),
    [("hey computer", "hey_computer"), ("Hey Jarvis!", "hey_jarvis"), ("ハロー", "hey_jarvis")],
)
def test_words_own_name_is_proposed_when_its_text_is_given(text: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"try {name}$"):
        check_word(text, "listen")
