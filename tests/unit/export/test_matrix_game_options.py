"""Upstream's options of `matrix_game`: files by their names, sizes, and its command as it is written."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slipway_cli.root import run
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.families.matrix_game.causal_wan.inference import MODES, inference_file
from slipway_export.families.matrix_game.family import FAMILY
from slipway_export.options import ExportOptions
from slipway_export.run import ExportResult, components_of
from slipway_export.spec import Component, Plan
from slipway_serving.protocol.errors import InvalidRequest


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint, as `slipway checkpoint matrix_game` writes it. Read only."""
    folder = tmp_path_factory.mktemp("matrix_game")
    FAMILY.presets["tiny"].write(folder, 0)
    return folder


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint, to be changed."""
    return Path(shutil.copytree(tiny, tmp_path / "checkpoint"))


def by_label(plan: Plan) -> dict[str, Component]:
    return {component.label: component for component in plan.components}


def named(folder: Path, mode: str) -> dict[str, Path]:
    return {
        "config-path": folder / inference_file(mode),
        "checkpoint-path": folder / MODES[mode].weights,
    }


@pytest.mark.parametrize("mode", MODES)
def test_network_is_all_there_is_when_its_two_files_are_given(copy: Path, tmp_path: Path, mode: str) -> None:
    files = named(copy, mode)
    files["checkpoint-path"] = Path(shutil.move(files["checkpoint-path"], tmp_path / "my.safetensors"))
    family = FAMILY.variant(mode)
    with open_checkpoint(family, "", files=files) as checkpoint:
        components = family.plan(checkpoint, family.axes).components
    assert [c.name for c in components] == [
        f"{mode}_{name}" for name in ("denoiser", "cross_attention", "block_denoiser", "rebase")
    ]


def test_pictures_files_are_found_when_they_lie_above_the_weights(tiny: Path) -> None:
    family = FAMILY.variant("gta_drive")
    with open_checkpoint(family, "", files=named(tiny, "gta_drive")) as checkpoint:
        assert by_label(family.plan(checkpoint, family.axes)).keys() >= {"image_encoder", "vae_encoder"}


def test_configuration_lies_where_upstream_has_it_when_it_is_not_given(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny)
    family = FAMILY.variant("templerun")
    with open_checkpoint(family, "", files={"checkpoint-path": Path(MODES["templerun"].weights)}) as found:
        assert family.plan(found, family.axes).components[0].name == "templerun_denoiser"


def test_files_are_refused_when_one_is_missing(tiny: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidRequest, match="--checkpoint-path must be given with --config-path, got none"),
        open_checkpoint(FAMILY, "", files={"config-path": tiny / inference_file("universal")}),
    ):
        pass
    weights = {"checkpoint-path": tiny / MODES["universal"].weights}
    with (
        pytest.raises(InvalidRequest, match="--config-path must be a file, got configs/inference_yaml/"),
        open_checkpoint(FAMILY, "", files=weights),
    ):
        pass
    alone = Path(shutil.copy(tiny / inference_file("universal"), tmp_path / "inference.yaml"))
    with (
        pytest.raises(InvalidRequest, match="model_config must name a folder with config.json"),
        open_checkpoint(FAMILY, "", files={**weights, "config-path": alone}),
    ):
        pass


def test_sizes_are_those_of_upstreams_options_when_given(tiny: Path) -> None:
    def ranges(**options: Any) -> dict[str, tuple[int, int, int]]:
        asked = ExportOptions(str(tiny), Path(), components=("universal_denoiser",), **options)
        with open_checkpoint(FAMILY, str(tiny)) as checkpoint:
            (denoiser,) = components_of(FAMILY, checkpoint, asked)
        return {axis.name: (axis.min, axis.opt, axis.max) for axis in denoiser.axes}

    sizes = {"batch-size": 3, "num-output-frames": 7}
    assert ranges(sizes=sizes) == {"batch": (1, 3, 3), "latent_frames": (1, 7, 9)}
    assert ranges(sizes=sizes, fixed_shapes=True) == {"batch": (3, 3, 3), "latent_frames": (7, 7, 7)}


def test_size_is_refused_when_its_axis_is_chosen_or_the_family_has_none(tiny: Path) -> None:
    axis = FAMILY.axes[0]
    with open_checkpoint(FAMILY, str(tiny)) as checkpoint:
        with pytest.raises(InvalidRequest, match="--batch-size must be given without --axis batch, got both"):
            axes_of(FAMILY, checkpoint, {"batch": axis}, {"batch-size": 2})
        with pytest.raises(
            InvalidRequest, match="--batch-size must be left out for airimu, got 2; try --axis"
        ):
            axes_of(family_named("airimu"), checkpoint, {}, {"batch-size": 2})


def test_defaults_are_those_of_upstreams_exporter() -> None:
    sizes = {axis.name: axis.opt for axis in FAMILY.axes}
    assert {option: sizes[axis] for option, axis in FAMILY.sizes.items()} == {
        "batch-size": 1,
        "num-output-frames": 150,
    }
    assert FAMILY.files["config-path"].default == Path("configs/inference_yaml/inference_universal.yaml")
    assert FAMILY.graph_file is not None
    assert FAMILY.graph_file.path == Path("outputs/causal_wan_model.onnx")
    assert FAMILY.graph_file.label == "universal_denoiser"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ExportOptions]:
    """What the command asks of the export, which is not run."""
    found: list[ExportOptions] = []

    def note(_: object, options: ExportOptions, *__: object) -> ExportResult:
        found.append(options)
        return ExportResult((), (), placed=False)

    monkeypatch.setattr("slipway_export.run.run_export", note)
    return found


def test_upstreams_command_is_understood_as_it_is_written(asked: list[ExportOptions]) -> None:
    flags: Mapping[str, str] = {
        "--config_path": "configs/inference_yaml/inference_gta_drive.yaml",
        "--checkpoint_path": "Matrix-Game-2.0/checkpoint.safetensors",
        "--output_path": "outputs/wan_gta_drive.onnx",
        "--mode": "gta_drive",
        "--batch_size": "2",
        "--num_output_frames": "15",
        "--opset_version": "17",
    }
    given = [text for pair in flags.items() for text in pair]
    assert run(["export", "matrix_game", *given, "--simplify", "--quiet"]) == 0
    (options,) = asked
    assert options.files == {
        "config-path": Path(flags["--config_path"]),
        "checkpoint-path": Path(flags["--checkpoint_path"]),
    }
    assert (options.output, options.repository) == (Path(flags["--output_path"]), None)
    assert (options.variant, options.opset, options.simplify) == ("gta_drive", 17, True)
    assert options.sizes == {"batch-size": 2, "num-output-frames": 15}


def test_graph_goes_where_upstream_has_it_when_no_place_is_given(asked: list[ExportOptions]) -> None:
    assert run(["export", "matrix_game", "--checkpoint-path", "a.safetensors", "--quiet"]) == 0
    (options,) = asked
    assert options.output == Path("outputs/causal_wan_model.onnx")
    assert (options.variant, options.sizes, options.fixed_shapes) == (None, {}, False)


def test_command_is_refused_when_files_come_with_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--checkpoint", "tiny", "--checkpoint-path", "a.safetensors", "--repository", "r"]
    assert run(["export", "matrix_game", *both]) == 2
    assert "and --checkpoint-path must be given, got several or none" in capsys.readouterr().err
