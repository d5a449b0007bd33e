"""AirIMU's exported graphs against PyTorch: one export serves every length, whatever it was traced at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_cli.root import run
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families.airimu import network as networks
from slipway_export.families.airimu.family import AXES, FAMILY
from slipway_export.families.airimu.network import CodeNet, Gru, Network, Whole, load_network
from slipway_export.graph.onnx import export_graph
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Axis, Component, Precision
from slipway_serving.protocol.turns import Turn
from slipway_serving.runtime.in_process import InProcessModels

pytestmark = pytest.mark.long

LENGTHS = (1, 10, 500, 1000, 1009, 5000)
BOUND = 1e-6
OUTPUTS = ["correction_acc", "correction_gyro", "acc_cov", "gyro_cov"]
Array = np.ndarray[Any, Any]


def axes(traced: int) -> tuple[Axis, ...]:
    return (AXES[0], Axis("frames", 1, traced, 5000), Axis("steps", 1, 12, 64))


def signals(frames: int, batch: int = 1) -> dict[str, Array]:
    random = np.random.default_rng(frames)
    acc = random.standard_normal((batch, frames, 3)) + np.array([0, 0, 9.81])
    return {
        "acc": acc.astype(np.float32),
        "gyro": random.standard_normal((batch, frames, 3)).astype(np.float32),
    }


def component(preset: str, traced: int) -> tuple[Component, Whole]:
    """Return the description of the whole graph and its network, the folder of the checkpoint being gone."""
    with open_checkpoint(FAMILY, preset) as checkpoint:
        described = FAMILY.plan(checkpoint, axes(traced)).components[0]
        network = Whole(load_network(checkpoint.path, checkpoint.source))
    return replace(described, load=lambda *_: network), network


def exported(folder: Path, preset: str, traced: int) -> tuple[Path, Network]:
    described, whole = component(preset, traced)
    path = folder / f"{preset}-{traced}.onnx"
    export_graph(described, whole, path, opset=23)
    return path, whole.network


def largest_difference(path: Path, network: Network, lengths: tuple[int, ...] = LENGTHS) -> float:
    """Return by how much a graph differs from PyTorch over lengths and batches; inf for an error."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    worst = 0.0
    for frames in lengths:
        for batch in (1, 3):
            inputs = signals(frames + network.lead, batch)
            with torch.no_grad():
                expected = network(*(torch.from_numpy(array) for array in inputs.values()))
            try:
                actual = session.run(OUTPUTS[:2], inputs)
            except Exception:  # noqa: BLE001 - ONNX Runtime's own have no common base
                return float("inf")
            for output, reference in zip(actual, expected, strict=False):
                if output.shape != tuple(reference.shape):
                    return float("inf")
                worst = max(worst, float(np.abs(output - reference.numpy()).max()))
    return worst


def states_are_explicit(path: Path) -> bool:
    """Whether each GRU of a graph takes an initial state that is computed, for a batch of any size."""
    graph = onnx.load(path).graph
    constants = {weight.name for weight in graph.initializer}
    grus = [node for node in graph.node if node.op_type == "GRU"]
    given = [node.input[5] if len(node.input) > 5 else "" for node in grus]
    return len(grus) == 2 and all(name and name not in constants for name in given)


@pytest.mark.parametrize(
    ("preset", "traced"), [("tiny", 10), ("tiny", 5000), ("tiny-kitti", 10), ("tiny-kitti", 1009)]
)
def test_one_export_serves_every_length(tmp_path: Path, preset: str, traced: int) -> None:
    path, network = exported(tmp_path, preset, traced)
    worst = largest_difference(path, network)
    print(f"{preset} traced at {traced} frames: max abs {worst:.1e} at {LENGTHS}")
    assert worst <= BOUND
    assert states_are_explicit(path) or not network.states


def implicit_state(self: Gru, signal: torch.Tensor, state: torch.Tensor) -> Any:
    """A GRU that leaves its initial state to the operator's default."""
    outputs, after = REAL_GRU(self, signal, state)
    if torch.onnx.is_in_onnx_export():
        by_step = signal.transpose(0, 1)
        weights = (networks._zrn(self.weight_ih_l0)[None], networks._zrn(self.weight_hh_l0)[None])
        bias = torch.cat([networks._zrn(self.bias_ih_l0), networks._zrn(self.bias_hh_l0)])[None]
        (steps, batch), hidden = by_step.shape[:2], self.hidden_size
        made, after = torch.onnx.ops.symbolic_multi_out(
            "GRU",
            (by_step, *weights, bias),
            {"hidden_size": hidden, "linear_before_reset": 1},
            dtypes=(signal.dtype, signal.dtype),
            shapes=((steps, 1, batch, hidden), (1, batch, hidden)),
        )
        return made[:, 0].transpose(0, 1), after
    return outputs, after


REAL_GRU, REAL_FORWARD = Gru.forward, CodeNet.forward


def frozen_state(self: CodeNet, acc: torch.Tensor, gyro: torch.Tensor) -> Any:
    """A network whose initial states have the traced batch."""
    zeros = torch.zeros(2, 128), torch.zeros(2, 256)
    features, *_ = self.recur(self.cnn(torch.cat([acc, gyro], -1)), *zeros)
    frames = torch.arange(acc.shape[1] - 9)
    return tuple(
        x[:, ((frames + 4) // 9).clamp(max=features.shape[1] - 2)] for x in self.decode(features[:, 1:])
    )


def frozen_hold(self: CodeNet, acc: torch.Tensor, gyro: torch.Tensor) -> Any:
    """A network whose hold has the features of the traced length."""
    zeros = [acc.new_zeros(acc.shape[0], size) for size in self.states.values()]
    features, *_ = self.recur(self.cnn(torch.cat([acc, gyro], -1)), *zeros)
    # At 10 frames there are 2 features.
    held = ((torch.arange(acc.shape[1] - 9) + 4) // 9).clamp(max=1)
    return tuple(x[:, held] for x in self.decode(features[:, 1:]))


@pytest.mark.parametrize("broken", [frozen_state, frozen_hold])
def test_comparison_at_every_length_fails_when_the_trace_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any]
) -> None:
    described, whole = component("tiny", 10)
    monkeypatch.setattr(CodeNet, "forward", broken)
    path = tmp_path / "broken.onnx"
    try:
        export_graph(described, whole, path, opset=23)
    except Exception as error:  # noqa: BLE001 - torch refuses what it sees to be frozen
        assert "batch" in str(error) or "frames" in str(error)
        return
    monkeypatch.setattr(CodeNet, "forward", REAL_FORWARD)
    assert largest_difference(path, whole.network) > BOUND


def test_check_of_the_states_fails_when_a_graph_leaves_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described, whole = component("tiny", 10)
    monkeypatch.setattr(Gru, "forward", implicit_state)
    export_graph(described, whole, tmp_path / "implicit.onnx", opset=23)
    assert not states_are_explicit(tmp_path / "implicit.onnx")


def test_float64_graph_equals_pytorch_in_float64(tmp_path: Path) -> None:
    small = (Axis("frames", 1, 10, 64), Axis("steps", 1, 2, 4))
    options = ExportOptions("tiny", tmp_path, precision=Precision.FP64, axes=small, components=("codenet",))
    run_export(FAMILY, options)
    path = tmp_path / "airimu_codenet/1/model.onnx"
    network = component("tiny", 10)[1].network.double()
    types = {weight.data_type for weight in onnx.load(path).graph.initializer if len(weight.dims) > 1}
    assert types == {onnx.TensorProto.DOUBLE}
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    for frames in (1, 10, 1009):
        inputs = signals(frames + 9)
        with torch.no_grad():
            expected = network(*(torch.from_numpy(array).double() for array in inputs.values()))
        for output, reference in zip(session.run(OUTPUTS, inputs), expected, strict=True):
            # Nothing is left but the rounding of the output to float32.
            np.testing.assert_allclose(output, reference.numpy(), rtol=6e-8, atol=0)


@pytest.fixture(scope="module")
def kitti(tmp_path_factory: pytest.TempPathFactory) -> Any:
    repository = tmp_path_factory.mktemp("kitti")
    run_export(FAMILY, ExportOptions("tiny-kitti", repository, axes=axes(10)[1:]))
    models = InProcessModels(repository, threads=1)
    yield models
    models.close()


@settings(max_examples=20, deadline=None)
@given(frames=st.integers(1, 200), data=st.data())
def test_kitti_stream_in_any_chunks_equals_the_whole_recording(
    kitti: InProcessModels, frames: int, data: st.DataObject
) -> None:
    given = signals(frames)
    whole = kitti.call("airimu", given, OUTPUTS)
    cuts = sorted({0, frames, *data.draw(st.sets(st.integers(0, frames), max_size=8))})
    parts = []
    for start, stop in pairwise(cuts):
        chunk = {name: array[:, start:stop] for name, array in given.items()}
        (part,) = kitti.stream(
            "airimu_stream", chunk, OUTPUTS, turn=Turn(1, start=start == 0, end=stop == frames)
        )
        parts.append(part)
        emitted = sum(part["acc_cov"].shape[1] for part in parts)
        assert stop - emitted <= (0 if stop == frames else 5)
    for name in OUTPUTS:
        np.testing.assert_allclose(
            np.concatenate([part[name] for part in parts], 1), whole[name], rtol=0, atol=BOUND
        )


def test_demo_checkpoint_brings_the_trajectory_to_the_ground_truth_when_it_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signs, units, lead-in and windows from the checkpoint to the printed errors, on a motion never seen."""
    recorded = tmp_path / "recorded"
    small = (Axis("frames", 1, 100, 4000), Axis("steps", 1, 2, 4))
    run_export(FAMILY, ExportOptions("demo", tmp_path / "models", axes=small))
    assert run(["imu-recording", str(recorded), "--seconds", "20", "--seed", "100"]) == 0
    graph = tmp_path / "models/airimu_codenet/1/model.onnx"
    options = ["--onnx", str(graph), "--window-size", "4000", "-o", str(tmp_path / "out.csv")]
    assert run(["imu", str(recorded), *options]) == 0
    printed = capsys.readouterr().out
    print(printed)
    for label in ("ATE, m", "AOE, degrees", "RTE over 200 frames, m", "ROE over 200 frames, degrees"):
        (line,) = [line for line in printed.splitlines() if line.startswith(label)]
        raw, corrected = map(float, line.removeprefix(label).split())
        assert corrected < 0.5 * raw, line
