"""FramePack's transformer by PyTorch, as its model answers: in process, through Triton, against its graph."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framepack_fixtures import AXES, small_checkpoint, small_repository

from slipway_client import Client
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.engines.requested import TorchRequest
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.graph.onnx import example_inputs
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis, Component, Engine
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

TRANSFORMER = "framepack_i2v_transformer"
Arrays = Mapping[str, np.ndarray[Any, Any]]
# Verified where the graphs are, but for their largest sizes.
SMALLER = tuple(Axis(axis.name, axis.min, axis.opt, min(axis.max, axis.opt + 1)) for axis in AXES)


@pytest.fixture(scope="module")
def checkpoint(shared: Path) -> Path:
    return small_checkpoint(shared)


@pytest.fixture(scope="module")
def graphs(shared: Path) -> Path:
    return small_repository(shared)[0]


@pytest.fixture(scope="module")
def mixed(checkpoint: Path, graphs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of graphs, its transformer served by PyTorch."""
    models = Path(shutil.copytree(graphs, tmp_path_factory.mktemp("mixed") / "models"))
    engines = {"transformer": Engine.TORCH}
    run_export(
        FAMILY,
        ExportOptions(
            str(checkpoint), models, engines=engines, components=("transformer",), axes=AXES, verify_budget=1
        ),
    )
    return models


def described(checkpoint: Path) -> Component:
    ranges = {axis.name: axis for axis in (*FAMILY.presets["tiny"].axes, *AXES)}
    plan = FAMILY.plan(Checkpoint(checkpoint, "small"), tuple(ranges.values()))
    return next(component for component in plan.components if component.name == "transformer")


def answers(models: Path, component: Component, calls: list[Arrays]) -> list[Arrays]:
    """Return what a placed component answers in process."""
    in_process = InProcessModels(models, threads=1)
    outputs = [tensor.name for tensor in component.outputs]
    found = [in_process.call(f"framepack_i2v_{component.name}", given, outputs) for given in calls]
    in_process.close()
    return found


def at_points(component: Component, *points: str) -> list[Arrays]:
    return [example_inputs(component, component.points()[point], seed=3) for point in points]


def furthest(actual: list[Arrays], expected: list[Arrays]) -> float:
    """Return the largest relative L2 of all outputs."""
    return max(
        float(np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name]))
        for ours, theirs in zip(actual, expected, strict=True)
        for name in theirs
    )


@pytest.mark.parametrize(("weights", "least", "most"), [(None, 0.0, 1e-4), ("int8", 1e-4, 8e-2)])
def test_transformer_answers_as_its_graph_when_pytorch_serves_it(
    weights: str | None,
    least: float,
    most: float,
    checkpoint: Path,
    graphs: Path,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    if weights is None:
        models = request.getfixturevalue("mixed")
    else:
        pytest.importorskip("torchao")
        models = tmp_path / "models"
        options = ExportOptions(
            str(checkpoint),
            models,
            engine=Engine.TORCH,
            torch=TorchRequest(weights={"transformer": weights}),
            components=("transformer",),
            axes=SMALLER,
            verify_budget=1,
        )
        run_export(FAMILY, options)
    transformer = described(checkpoint)
    calls = at_points(transformer, "min", "unseen" if weights is None else "opt")
    found = furthest(answers(models, transformer, calls), answers(graphs, transformer, calls))
    print(f"transformer by torch, {weights or 'fp32'}: relative L2 {found:.1e} to its graph")
    assert least <= found <= most


def test_triton_answers_as_the_graph_when_pytorch_serves_the_transformer(
    checkpoint: Path, graphs: Path, mixed: Path, tmp_path: Path
) -> None:
    manifest = json.loads((mixed / TRANSFORMER / "manifest.json").read_text())
    assert manifest["engine"] == "torch"
    # Without the checkpoint's folder: the model has what it needs.
    shutil.copytree(mixed / TRANSFORMER, tmp_path / "models" / TRANSFORMER)
    transformer = described(checkpoint)
    (given,) = calls = at_points(transformer, "opt")
    with (
        Server(ServerConfig(tmp_path / "models", http_port=0, grpc_port=0, metrics_port=0)) as server,
        Client(server.grpc_url) as client,
    ):
        answer = client.infer(TRANSFORMER, given)
    assert furthest([answer], answers(graphs, transformer, calls)) <= 1e-4
