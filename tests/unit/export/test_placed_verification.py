"""Verification of placed models, with graphs of a few nodes: which points, what the manifests have after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from line_graph import linear, write_graph
from test_verify_steps import graph_file, summing
from torch import nn
from tritonclient.grpc import model_config_pb2 as pb
from typer.testing import CliRunner

from slipway_cli.root import app
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.repository.publish import MANIFEST, find_modification, write_manifest
from slipway_export.repository.told_facts import write_facts
from slipway_export.sizing.machine import Speed
from slipway_export.spec import Axis, Component, Family, Plan, Precision, Variant
from slipway_export.verification.comparison import ParityFailed, ParityRow
from slipway_export.verification.placed import PlacedModel, verify_placed
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.export_facts import PARITY_PARAMETER, ParitySummary


class Add(nn.Module):
    """The network of :func:`summing`."""

    def forward(self, x: Any, total: Any) -> Any:
        return x + total, x + total


def plan(checkpoint: Checkpoint, axes: Sequence[Axis]) -> Plan:
    assert checkpoint.config("config.json") == {"kind": "line"}
    steps = summing()
    sums = replace(steps.next, name="sum", load=lambda *_: Add(), axes=(Axis("batch", 1, 2, 4),))
    other = replace(linear(), name="other", axes=tuple(axes))
    return Plan((replace(linear(), axes=tuple(axes)), other, sums), (), (replace(steps, next=sums),))


LINE = Family(
    name="family",
    upstream="nobody/line",
    summary="y = 2 x + 1",
    served=("family_line",),
    layout=("config.json",),
    axes=(Axis("rows", 1, 4, 8),),
    presets={},
    plan=plan,
    variants={"other": Variant("the same", plan)},
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of three models, of which `line` was verified at its smallest size only."""
    monkeypatch.setattr("slipway_export.verification.placed.family_named", {"family": LINE}.__getitem__)
    # What the machine does takes a second to find out, and says nothing about what is verified.
    monkeypatch.setattr("slipway_export.sizing.budget.measured_speed", lambda device: Speed(device, 1e9, 1e9))
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/config.json").write_text('{"kind": "line"}')
    for component in plan(Checkpoint(tmp_path / "checkpoint", ""), LINE.axes).components:
        place(tmp_path, component)
    return tmp_path / "models"


def place(folder: Path, component: Component, **facts: Any) -> Path:
    model = folder / "models" / f"family_{component.name}"
    (model / "1").mkdir(parents=True, exist_ok=True)
    path = model / "1/model.onnx"
    _ = graph_file(path) if component.name == "sum" else write_graph(path)
    (model / "config.pbtxt").write_text("# by hand\n")
    bound = component.tolerance[Precision.FP32]
    row = ParityRow(component.label, "y", "min (rows=1)", (1, 3), 0.5, 0.0, 1.0, bound, "elsewhere")
    left = [
        {"graph": component.label, "point": point, "sizes": {"rows": 1}, "seconds": 1.0}
        for point in ("opt", "max")
    ]
    values = {
        "family": "family",
        "variant": None,
        "engine": "onnxruntime",
        "checkpoint": {"source": str(folder / "checkpoint")},
        "planned_axes": {axis.name: [axis.min, axis.opt, axis.max] for axis in LINE.axes},
        "precision": {"model": "fp32"},
        "parity": [asdict(row)],
        "not_verified": left if component.name == "line" else [],
    }
    write_facts(model / "config.pbtxt", values)
    write_manifest(model, {**values, **facts})
    return model


def told(repository: Path) -> ParitySummary | None:
    """Return what a server tells of the parity."""
    text = (repository / "family_line" / "config.pbtxt").read_text()
    assert text.startswith("# by hand\n")
    config = text_format.Parse(text, pb.ModelConfig())
    return ParitySummary.parse(config.parameters[PARITY_PARAMETER].string_value)


def manifest_of(repository: Path, name: str = "line") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((repository / f"family_{name}" / MANIFEST).read_text())
    return found


def points(rows: Sequence[ParityRow]) -> list[tuple[str, str, str]]:
    return [(row.graph, row.output, row.point) for row in rows]


def test_points_that_were_left_out_are_verified_and_noted(repository: Path) -> None:
    before, said = manifest_of(repository), list[str]()
    first = told(repository)
    assert first is not None and (first.points, first.left_out, first.max_abs) == (1, 2, 0.5)
    rows = verify_placed(repository, report=said.append)
    second = told(repository)
    assert second is not None and (second.points, second.left_out, second.max_abs) == (5, 0, 0.5)
    assert points(rows) == [
        ("line", output, point) for point in ("opt (rows=4)", "max (rows=8)") for output in ("y", "count")
    ]
    after = manifest_of(repository)
    assert after["not_verified"] == []
    assert after["parity"][0] == before["parity"][0]
    assert [(row["output"], row["point"]) for row in after["parity"][1:]] == [
        (row.output, row.point) for row in rows
    ]
    assert after["parity"][1]["verified_on"] == "ONNX Runtime CPU"
    changed = {"parity": 0, "not_verified": 0, "files": 0}
    assert {**after, **changed} == {**before, **changed}
    assert {**after["files"], "config.pbtxt": 0} == {**before["files"], "config.pbtxt": 0}
    text = (repository / "family_line" / MANIFEST).read_text()
    assert text.endswith("}\n") and '\n  "format": 1' in text
    assert find_modification(repository / "family_line") is None
    assert said[0].startswith("verification: about ") and said[0].endswith(" on the cpu here")
    assert said[1:] == ["line: running PyTorch at opt, max", "line: verifying at opt, max"]
    assert sorted(path.name for path in repository.parent.iterdir()) == ["checkpoint", "models"]
    said.clear()
    assert verify_placed(repository, report=said.append) == []
    assert said == []


def test_row_is_replaced_when_its_point_is_verified_at_the_same_place_again(repository: Path) -> None:
    first = verify_placed(repository, components=("line",), points=("min", "unseen"))
    assert [row.point.split(" ")[0] for row in first] == ["min", "min", "unseen", "unseen"]
    # The row from elsewhere stays beside that of this machine.
    assert [row["verified_on"] for row in manifest_of(repository)["parity"]] == ["elsewhere"] + [
        "ONNX Runtime CPU"
    ] * 4
    # What was left out was not verified now.
    assert [left["point"] for left in manifest_of(repository)["not_verified"]] == ["opt", "max"]
    verify_placed(repository, components=("line",), points=("min",))
    assert len(manifest_of(repository)["parity"]) == 5


def test_components_that_are_named_are_verified_and_no_others(repository: Path) -> None:
    rows = verify_placed(repository, components=("other",), points=("min", "opt"))
    assert {row.graph for row in rows} == {"other"}
    assert len(manifest_of(repository)["parity"]) == 1
    both = verify_placed(repository, points=("opt",))
    assert [row.graph for row in both] == ["line", "line", "other", "other", "sum", "sum"]


def test_steps_are_verified_as_one_run_when_they_are_asked_for(repository: Path) -> None:
    said: list[str] = []
    rows = verify_placed(repository, points=("steps",), report=said.append)
    assert points(rows) == [("sum", "y", f"step {step} of 4 (batch=2)") for step in (1, 2, 3, 4)]
    assert said[1:] == ["sum: verifying 4 steps as one run"]
    assert len(manifest_of(repository, "sum")["parity"]) == 5
    place(
        repository.parent,
        plan_of(repository)[2],
        not_verified=[left_out("sum", "steps"), left_out("sum", "max")],
    )
    assert len(verify_placed(repository, components=("sum",), points=("steps", "min"))) == 6
    assert [left["point"] for left in manifest_of(repository, "sum")["not_verified"]] == ["max"]


def plan_of(repository: Path) -> tuple[Component, ...]:
    return plan(Checkpoint(repository.parent / "checkpoint", ""), LINE.axes).components


def left_out(graph: str, point: str) -> dict[str, Any]:
    return {"graph": graph, "point": point, "sizes": {}, "seconds": 1.0}


def test_manifests_stay_as_they_were_when_a_graph_is_wrong(repository: Path) -> None:
    write_graph(repository / "family_other/1/model.onnx", 2.5)
    model = repository / "family_other"
    facts = {key: manifest_of(repository, "other")[key] for key in manifest_of(repository, "other")}
    write_manifest(model, {key: facts[key] for key in facts if key not in ("files", "versions")})
    before = [manifest_of(repository, name) for name in ("line", "other")]
    with pytest.raises(ParityFailed, match=r"other: y at opt \(rows=4\)"):
        verify_placed(repository, points=("opt",))
    assert [manifest_of(repository, name) for name in ("line", "other")] == before


def test_models_of_two_plans_are_verified_each_by_its_own(repository: Path) -> None:
    place(
        repository.parent,
        plan_of(repository)[1],
        variant="other",
        planned_axes={"rows": [2, 3, 6]},
        not_verified=[left_out("other", "max")],
    )
    rows = verify_placed(repository)
    assert sorted({(row.graph, row.point) for row in rows}) == [
        ("line", "max (rows=8)"),
        ("line", "opt (rows=4)"),
        ("other", "max (rows=6)"),
    ]


def test_checkpoint_is_taken_from_where_it_is_said_to_be(repository: Path) -> None:
    moved = (repository.parent / "checkpoint").rename(repository.parent / "moved")
    with pytest.raises(InvalidRequest, match="checkpoint must be a preset"):
        verify_placed(repository)
    assert len(verify_placed(repository, source=str(moved))) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"points": ("min", "largest", "lowest")},
            "points must be some of min, opt, max, unseen, steps, got largest, lowest",
        ),
        (
            {"components": ("vae", "line", "brain")},
            "component must be one of line, other, sum, got brain, vae",
        ),
        ({"parts": {"brain": "."}}, "part of family family must be"),
    ],
)
def test_argument_is_named_when_it_is_wrong(repository: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as failure:
        verify_placed(repository, **arguments)
    assert str(failure.value).startswith(said)


def test_model_is_named_when_it_cannot_be_verified(repository: Path) -> None:
    config = repository / "family_other/config.pbtxt"
    exported = config.read_text()
    config.write_text("mine")
    with pytest.raises(InvalidRequest) as changed:
        verify_placed(repository)
    text = (
        "model family_other must be unchanged since its export to be verified,"
        " got files changed since the export:"
    )
    assert str(changed.value) == f"repository {repository}: {text} config.pbtxt"
    config.write_text(exported)
    path = repository / "family_other" / MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["planned_axes"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(InvalidRequest, match="family_other/manifest.json must contain planned_axes to be"):
        verify_placed(repository)
    # A model without graphs has nothing to verify.
    del manifest["parity"]
    path.write_text(json.dumps(manifest))
    assert {row.graph for row in verify_placed(repository)} == {"line"}


def test_repository_is_refused_when_nothing_in_it_was_exported(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidRequest) as failure:
        verify_placed(tmp_path / "empty")
    text = f"repository must contain models that slipway exported, got none in {tmp_path / 'empty'}"
    assert str(failure.value) == text


def test_wanted_points_are_those_asked_for_in_their_order_or_those_left_out() -> None:
    manifest = {"not_verified": [left_out("line", "max"), left_out("line", "opt"), left_out("other", "min")]}
    placed = PlacedModel(Path("models/family_line"), manifest)
    assert placed.points_to_verify(linear(), ()) == ["opt", "max"]
    assert placed.points_to_verify(linear(), ("steps", "min")) == ["min", "steps"]
    assert placed.path(linear()) == Path("models/family_line/1/model.onnx")


def test_command_adds_the_rows_and_says_how_many(repository: Path) -> None:
    asked = [
        "verify",
        str(repository),
        "--points",
        " min , opt,",
        "--component",
        "line",
        "--component",
        "sum",
    ]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    # Both outputs of line, and both of sum.
    assert f"8 rows added to the manifests in {repository}" in done.stdout
    assert "Parity with PyTorch" in done.stdout and "\nline" in done.stdout
    assert "line: verifying at min, opt" in done.stderr
    quiet = CliRunner().invoke(app, [*asked, "--quiet"])
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")
    nothing = CliRunner().invoke(app, ["verify", str(repository), "--component", "other"])
    assert nothing.stdout == f"0 rows added to the manifests in {repository}\n"
    moved = (repository.parent / "checkpoint").rename(repository.parent / "moved")
    assert isinstance(CliRunner().invoke(app, asked).exception, InvalidRequest)
    assert CliRunner().invoke(app, [*asked, "--checkpoint", str(moved)]).exit_code == 0
    assert np.isfinite(manifest_of(repository)["parity"][-1]["max_abs"])
    other = CliRunner().invoke(app, [*asked, "--part", f"brain={moved}"])
    assert str(other.exception).startswith("part of family family must be")
