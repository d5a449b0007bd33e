"""Checkpoints that are given as files of any names and places."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slipway_cli.root import run
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.commands.export_arguments import parameters
from slipway_export.families import BUILT_IN
from slipway_export.families.airimu import family as airimu
from slipway_export.families.airimu.conf import CONF_FILE, WEIGHTS_FILE
from slipway_export.families.wan_t2v import family as wan_t2v
from slipway_serving.protocol.errors import InvalidRequest


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny checkpoint's two files, elsewhere and under other names."""
    folder = tmp_path_factory.mktemp("files")
    found = {"conf": folder / "configs/exp.conf", "ckpt": folder / "weights.pt"}
    with open_checkpoint(airimu.FAMILY, "tiny") as checkpoint:
        for role, path in found.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes((checkpoint.path / airimu.FAMILY.files[role].path).read_bytes())
    return found


def test_checkpoint_has_its_layout_when_its_files_are_named(files: dict[str, Path]) -> None:
    with open_checkpoint(airimu.FAMILY, "", files=files) as checkpoint:
        assert (checkpoint.path / CONF_FILE).read_bytes() == files["conf"].read_bytes()
        assert (checkpoint.path / WEIGHTS_FILE).read_bytes() == files["ckpt"].read_bytes()
        assert checkpoint.source == f"{CONF_FILE}={files['conf']}, {WEIGHTS_FILE}={files['ckpt']}"
    assert not checkpoint.path.exists()
    assert files["ckpt"].is_file()


def test_export_says_where_its_files_were_when_they_are_named(files: dict[str, Path], tmp_path: Path) -> None:
    given = [text for role, path in files.items() for text in (f"--{role}", str(path))]
    axes = ["--axis", "frames=1:12:20", "--axis", "batch=1:2:2"]
    target = ["--component", "codenet", "--repository", str(tmp_path)]
    assert run(["export", "airimu", *given, *axes, *target, "--quiet"]) == 0
    manifest = json.loads((tmp_path / "airimu_codenet/manifest.json").read_text())
    assert manifest["checkpoint"]["source"] == f"{CONF_FILE}={files['conf']}, {WEIGHTS_FILE}={files['ckpt']}"


def test_named_files_are_refused_by_role_when_one_is_missing_or_not_the_familys(
    files: dict[str, Path], tmp_path: Path
) -> None:
    with (
        pytest.raises(InvalidRequest, match="airimu: --conf must be given with --ckpt, got none"),
        open_checkpoint(airimu.FAMILY, "", files={"ckpt": files["ckpt"]}),
    ):
        pass
    nowhere = tmp_path / "none.ckpt"
    with (
        pytest.raises(InvalidRequest, match=f"airimu: --ckpt must be a file, got {nowhere}"),
        open_checkpoint(airimu.FAMILY, "", files={**files, "ckpt": nowhere}),
    ):
        pass
    with (
        pytest.raises(InvalidRequest, match=r"wan_t2v: --conf must be left out.*--ckpt must be left out"),
        open_checkpoint(wan_t2v.FAMILY, "", files=files),
    ):
        pass


def test_export_is_refused_when_files_come_with_a_checkpoint(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--checkpoint", "tiny", "--conf", str(files["conf"]), "--ckpt", str(files["ckpt"])]
    assert run(["export", "airimu", "--repository", str(tmp_path), *both]) == 2
    assert "one of --checkpoint, --model, and --conf with --ckpt must be given" in capsys.readouterr().err


def test_every_role_of_a_family_has_its_option() -> None:
    for family in BUILT_IN:
        options = {each.name.replace("_", "-") for each in parameters(family)}
        for each in (family, *map(family.variant, family.variants)):
            assert {*each.files, *each.sizes} <= options
            assert {file.path for file in each.files.values()} <= set(each.layout)
            assert set(each.sizes.values()) <= {axis.name for axis in each.axes}


def test_role_is_refused_when_the_export_command_has_an_option_of_its_name() -> None:
    family = replace(airimu.FAMILY, sizes={"verify-budget": "frames"})
    with pytest.raises(
        InvalidRequest, match="must differ from the options of `slipway export`, got verify-budget"
    ):
        parameters(family)


def test_options_may_come_before_the_family(capsys: pytest.CaptureFixture[str]) -> None:
    before = [
        "export",
        "--repository",
        "airimu",
        "--compile",
        "--check-only",
        "airimu",
        "--checkpoint",
        "nothing",
    ]
    assert run(before) == 2
    assert "checkpoint must be a preset" in capsys.readouterr().err
    assert run(["export", "--conf", "x", "wan_t2v", "--repository", "airimu"]) == 2
    assert "--conf" in capsys.readouterr().err
