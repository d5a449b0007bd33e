"""Traced graphs that exports of equal networks share."""

from __future__ import annotations

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import onnxruntime as ort
import pytest
import torch

from slipway_export.graph import onnx as exporter
from slipway_export.graph import traces
from slipway_export.graph.onnx import example_inputs, export_graph
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance


class Scaled(torch.nn.Module):
    """A network with weights and a hyperparameter that its `repr` does not show."""

    def __init__(self, seed: int = 0, factor: float = 2.0, folder: Path | None = None) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.factor, self.folder = factor, folder
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor


def component(most: int = 4) -> Component:
    tensor = partial(TensorSpec, dtype=DType.FLOAT32, shape=("batch", 3))
    bound = Tolerance(max_abs=1.0, relative_l2=1.0, cosine=0.0)
    return Component(
        name="net",
        graph="model",
        inputs=(tensor("x"),),
        outputs=(tensor("y"),),
        axes=(Axis("batch", 1, 2, most),),
        load=lambda *_: Scaled(),
        tolerance={Precision.FP32: bound},
    )


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the labels of the components that are traced, in a folder of this test's own."""
    monkeypatch.setenv(traces.VARIABLE, str(tmp_path / "traces"))
    labels: list[str] = []
    trace = exporter._trace

    def noted(asked: Component, *rest: object) -> object:
        labels.append(asked.label)
        return trace(asked, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(exporter, "_trace", noted)
    return labels


def exported(
    module: torch.nn.Module, folder: Path, asked: Component | None = None, **options: object
) -> bytes:
    """Export a network, compare its graph with it, and return the graph."""
    asked = asked or component()
    path = folder / "model.onnx"
    export_graph(asked, module.eval(), path, **{"opset": 23, **options})  # type: ignore[arg-type]
    inputs = example_inputs(asked, {"batch": 3}, seed=5)
    (found,) = ort.InferenceSession(path).run(None, inputs)
    with torch.no_grad():
        np.testing.assert_allclose(found, module(torch.from_numpy(inputs["x"])), atol=1e-5)
    return path.read_bytes()


def test_equal_network_takes_the_graph_of_the_first(traced: list[str], tmp_path: Path) -> None:
    first = exported(Scaled(folder=tmp_path), tmp_path)
    assert exported(Scaled(folder=tmp_path / "elsewhere"), tmp_path) == first
    assert traced == ["net"]
    for engine in (Engine.PORTABLE, Engine.TENSORRT):  # both in the dialect of standard operators
        exported(Scaled(folder=tmp_path), tmp_path, engine=engine)
    assert traced == ["net"] * 2


def test_network_of_other_weights_takes_the_graph_and_keeps_its_weights(
    traced: list[str], tmp_path: Path
) -> None:
    first = exported(Scaled(), tmp_path)
    assert exported(Scaled(seed=1), tmp_path) != first  # compared with the network by `exported`
    assert traced == ["net"]


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        (Scaled(factor=3.0), component()),
        (Scaled().double().float(), component(most=5)),
        (torch.nn.Sequential(Scaled()), component()),
    ],
    ids=["hyperparameter", "axis", "class"],
)
def test_other_network_is_traced_by_itself(
    traced: list[str], tmp_path: Path, other: torch.nn.Module, asked: Component
) -> None:
    exported(Scaled(), tmp_path)
    exported(other, tmp_path, asked)
    assert traced == ["net"] * 2


def test_network_of_another_method_is_traced_by_itself(
    traced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported(Scaled(), tmp_path)
    monkeypatch.setattr(Scaled, "forward", lambda self, x: self.linear(x) + self.factor)
    exported(Scaled(), tmp_path)
    assert traced == ["net"] * 2


def test_network_that_cannot_be_compared_is_traced_each_time(traced: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        module = Scaled()
        module.own = lambda: None  # type: ignore[assignment]
        exported(module, tmp_path)
    assert traced == ["net"] * 2


def test_nothing_is_kept_without_a_folder(
    traced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(traces.VARIABLE)
    for _ in range(2):
        exported(Scaled(), tmp_path)
    assert traced == ["net"] * 2
    assert not (tmp_path / "traces").exists()


def test_large_network_is_not_kept(
    traced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_LARGEST_BYTES", 47)  # twelve weights of four bytes are 48
    exported(Scaled(), tmp_path)
    assert not (tmp_path / "traces").exists()


def test_second_process_waits_for_the_graph_of_the_first(traced: list[str], tmp_path: Path) -> None:
    first, lock, let_go, at_the_lock = exporter._trace, fcntl.flock, threading.Event(), threading.Barrier(3)

    def slow(*asked: object) -> object:
        assert let_go.wait(60)
        return first(*asked)  # type: ignore[arg-type]

    def noted(file: IO[str], operation: int) -> None:
        at_the_lock.wait(60)
        lock(file, operation)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(exporter, "_trace", slow)
        patch.setattr(fcntl, "flock", noted)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        # Threads stand for processes: the lock is that of an open file.
        both = [pool.submit(exported, Scaled(), tmp_path / name) for name in ("a", "b")]
        at_the_lock.wait(60)
        let_go.set()
        assert both[0].result() == both[1].result()
    assert traced == ["net"]
