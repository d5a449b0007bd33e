"""Verification of what is placed: what an export left out, again, and elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slipway_cli.root import app
from slipway_export.engines.device import Device
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.repository.publish import MANIFEST, find_modification
from slipway_export.run import ExportResult, run_export
from slipway_export.verification.comparison import ParityFailed
from slipway_export.verification.placed import verify_placed
from slipway_serving.protocol.errors import InvalidRequest

pytestmark = pytest.mark.long

WAN = family_named("wan_t2v")
PARTS = ("text_encoder",)
MODEL = "wan_t2v_text_encoder"


@pytest.fixture(scope="module")
def hurried(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportResult]:
    """A repository with a text encoder that was verified within next to no time."""
    repository = tmp_path_factory.mktemp("hurried") / "models"
    options = ExportOptions(str(checkpoint), repository, components=PARTS, verify_budget=1e-6)
    return repository, run_export(WAN, options)


@pytest.fixture
def placed(hurried: tuple[Path, ExportResult], tmp_path: Path) -> Path:
    """A copy of the repository that a test may change."""
    return Path(shutil.copytree(hurried[0], tmp_path / "models"))


def manifest_of(repository: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((repository / MODEL / MANIFEST).read_text())
    return content


def points_of(repository: Path) -> set[str]:
    return {row["point"].split(" (")[0] for row in manifest_of(repository)["parity"]}


def test_export_names_what_it_left_out_when_the_budget_is_small(hurried: tuple[Path, ExportResult]) -> None:
    repository, result = hurried
    assert result.placed
    assert {row.point for row in result.rows} == {"min (batch=1, tokens=1)", "reduced (batch=2, tokens=2)"}
    assert [(left.graph, left.point) for left in result.left_out] == [
        ("text_encoder", "opt"), ("text_encoder", "max")
    ]  # fmt: skip
    left = manifest_of(repository)["not_verified"]
    assert [(row["graph"], row["point"], row["sizes"]) for row in left] == [
        ("text_encoder", "opt", {"batch": 2, "tokens": 64}),
        ("text_encoder", "max", {"batch": 8, "tokens": 512}),
    ]
    assert all(row["seconds"] > 0 for row in left)


def test_command_says_what_verifies_the_rest_when_the_budget_is_small(
    checkpoint: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(
        app,
        ["export", "wan_t2v", "--checkpoint", str(checkpoint), "--repository", str(tmp_path / "models"),
         "--component", "text_encoder", "--check-only", "--verify-budget", "0.000001"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "not verified here: text_encoder at max (batch=8, tokens=512)" in done.output
    assert f"slipway verify {tmp_path / 'models'} --points opt,max" in done.output


def test_verify_adds_the_rows_that_the_export_left_out(placed: Path) -> None:
    rows = verify_placed(placed)
    assert {row.point.split(" (")[0] for row in rows} == {"opt", "max"}
    assert points_of(placed) == {"min", "reduced", "opt", "max"}
    assert manifest_of(placed)["not_verified"] == []
    assert find_modification(placed / MODEL) is None
    assert verify_placed(placed) == []


def test_verify_replaces_a_row_when_the_point_is_verified_again(placed: Path) -> None:
    before = manifest_of(placed)
    done = CliRunner().invoke(app, ["verify", str(placed), "--points", "min", "--component", "text_encoder"])
    assert done.exit_code == 0, done.output
    assert f"1 rows added to the manifests in {placed}" in done.output
    after = manifest_of(placed)
    assert len(after["parity"]) == len(before["parity"])
    assert after["not_verified"] == before["not_verified"]


def test_verify_prints_one_document_when_json_is_asked(placed: Path) -> None:
    command = ["verify", str(placed), "--points", "min", "--component", "text_encoder", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (row,) = document["parity"]
    assert document["repository"] == str(placed)
    assert (row["graph"], row["point"], row["passed"]) == ("text_encoder", "min (batch=1, tokens=1)", True)
    assert 0 <= row["relative_l2"] <= row["bound"]["relative_l2"] and "verifying" in done.stderr


def test_verify_runs_the_steps_when_they_are_asked_for(
    exported: tuple[Path, ExportResult], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(exported[0], tmp_path / "models"))
    rows = verify_placed(copy, components=("vae_decoder",), points=("steps",))
    assert [row.point.split(" (")[0] for row in rows] == [f"step {i} of 4" for i in (1, 2, 3, 4)]


def test_verify_refuses_a_checkpoint_when_it_is_not_that_of_the_models(placed: Path, tmp_path: Path) -> None:
    WAN.presets["tiny"].write(tmp_path, 1)
    before = manifest_of(placed)
    with pytest.raises(ParityFailed, match="text_encoder: last_hidden_state at opt"):
        verify_placed(placed, source=str(tmp_path))
    assert manifest_of(placed) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"points": ("largest",)}, "points must be some of min, opt, max, unseen, steps, got largest"),
        ({"components": ("vae",)}, "component must be one of text_encoder, got vae"),
        ({"source": "nowhere"}, "checkpoint must be a preset"),
        ({"parts": {"brain": "."}}, "part of family .* must be one of"),
    ],
)
def test_verify_names_the_argument_when_it_is_bad(
    placed: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        verify_placed(placed, **arguments)


def test_verify_refuses_a_model_when_a_file_was_changed(placed: Path) -> None:
    with (placed / MODEL / "config.pbtxt").open("a") as config:
        config.write("# mine\n")
    with pytest.raises(
        InvalidRequest, match=r"text_encoder must be unchanged since its export.*config\.pbtxt"
    ):
        verify_placed(placed)


def test_verify_refuses_a_manifest_when_an_earlier_release_wrote_it(placed: Path) -> None:
    manifest = manifest_of(placed)
    del manifest["planned_axes"]
    (placed / MODEL / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InvalidRequest, match="must contain planned_axes to be verified"):
        verify_placed(placed)


def test_verify_refuses_a_repository_when_it_holds_no_exported_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="must contain models that slipway exported"):
        verify_placed(tmp_path)


def test_export_refuses_a_budget_when_it_is_not_above_zero(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="verify-budget must be above 0 seconds, got 0"):
        ExportOptions("tiny", tmp_path, verify_budget=0)


def test_export_refuses_cuda_when_there_is_none(checkpoint: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        ["export", "wan_t2v", "--checkpoint", str(checkpoint), "--repository", str(tmp_path / "models"),
         "--verify-device", "cuda"],
    )  # fmt: skip
    assert isinstance(done.exception, InvalidRequest)
    assert "got cuda" in str(done.exception)
    assert not (tmp_path / "models").exists()


@pytest.mark.gpu
def test_verify_runs_both_sides_on_the_gpu_when_told(placed: Path) -> None:
    rows = verify_placed(placed, points=("min", "unseen"), device=Device.CUDA)
    assert {row.verified_on for row in rows} == {"ONNX Runtime CUDA"}
    assert "ONNX Runtime CPU" in {row["verified_on"] for row in manifest_of(placed)["parity"]}
