"""Resources that placed models need, from the graphs of a whole export."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from slipway_cli.root import run
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.run import ExportResult
from slipway_export.sizing.estimate import Machine, estimate_component
from slipway_export.sizing.machine import Speed
from slipway_export.sizing.placed import estimate_placed, exported_models
from slipway_export.spec import Precision

pytestmark = pytest.mark.long

WAN = family_named("wan_t2v")
MACHINE = Machine(Speed("cpu", pytorch=1e11, onnxruntime=1e11), call_s=0.0005)


def test_needs_say_the_bytes_that_graphs_take_when_exported(
    exported: tuple[Path, ExportResult],
) -> None:
    placed = estimate_placed(exported_models(exported[0]), MACHINE)
    assert not placed.unknown
    assert {need.label for need in placed.estimates} >= {"denoiser_high", "text_encoder", "vae_decoder/next"}
    with open_checkpoint(WAN, "tiny", configurations_only=True) as checkpoint:
        for component in WAN.plan(checkpoint, axes_of(WAN, checkpoint, {})).components:
            (planned,) = estimate_component(component, MACHINE, [Precision.FP32])
            (found,) = (need for need in placed.estimates if need.label == component.label)
            if component.graph == "model":  # Graphs beside one another share their weights on disk.
                assert planned.disk_bytes == pytest.approx(found.disk_bytes, rel=0.25), component.label
            assert planned.operations == found.operations


def test_placed_graphs_are_sized_by_their_files_when_the_checkpoint_is_gone(
    exported: tuple[Path, ExportResult], tmp_path: Path
) -> None:
    model = tmp_path / "wan_t2v_text_encoder"
    shutil.copytree(exported[0] / model.name, model)
    manifest = json.loads((model / "manifest.json").read_text(encoding="utf-8"))
    manifest["checkpoint"]["source"] = str(tmp_path / "gone")
    (model / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    placed = estimate_placed(exported_models(tmp_path), MACHINE)
    (need,) = placed.estimates
    assert need.disk_bytes == (model / "1/model.onnx").stat().st_size
    assert need.operations == 0
    assert (
        "compute time and activations are unknown, because checkpoint must be a preset" in placed.unknown[0]
    )
    # The same configurations lie elsewhere.
    (known,) = estimate_placed(exported_models(tmp_path), MACHINE, "tiny").estimates
    assert known.operations > 0


def test_plan_of_a_repository_names_the_models_when_asked(
    exported: tuple[Path, ExportResult], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(exported[0])]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^wan_t2v_text_encoder +fp32 ", said, re.M)
    assert run(["plan", str(exported[0]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["unknown"] == []
    assert {graph["model"] for graph in document["graphs"]} == {
        path.name for path in exported[0].iterdir() if list(path.glob("1/*.onnx"))
    }
