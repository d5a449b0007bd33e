"""Steps against the network's own whole run: which values each run is given, and how outputs are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from slipway_export.engines.device import Device
from slipway_export.graph.onnx import example_inputs
from slipway_export.spec import Axis, Component, DType, Precision, StepInput, Stepped, TensorSpec, Tolerance
from slipway_export.verification.comparison import ParityFailed, check_parity
from slipway_export.verification.steps import stepped_parity_rows, verify_stepped
from slipway_serving.protocol.errors import InvalidRequest

WIDTH, FRAMES, STEPS, RUNS = 3, 2, 3, 2
BOUND = Tolerance(max_abs=1e-4, relative_l2=1e-5, cosine=0.99999)
Arrays = dict[str, np.ndarray]


def floats(name: str, *shape: int | str, **more: Any) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, shape, **more)


def net(frames: int = FRAMES, graph: str = "model", carries: bool = True) -> Component:
    inputs = (
        floats("image", "batch", WIDTH),
        floats("x", "batch", frames, WIDTH),
        floats("heard", "batch", 3 * frames - 2, 1),
        floats("shift", "batch"),
        TensorSpec("place", DType.INT64, (1,), values=(0, 9)),
        floats("total", "batch", WIDTH, initial=0.5),
    )
    outputs = (
        floats("y", "batch", frames, WIDTH),
        floats("last", "batch", WIDTH),
        floats("next_total", "batch", WIDTH),
    )
    return Component(
        "net",
        inputs if carries else inputs[:-1],
        outputs,
        (Axis("batch", 1, 2, 4),),
        lambda *_: pytest.fail("no network is needed"),
        {Precision.FP32: BOUND},
        graph=graph,
    )


def step(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step, on arrays of either library."""
    x, total = inputs["x"], inputs.get("total", 0.5)
    around = inputs["image"] + inputs["heard"].sum(1) + inputs["shift"][:, None] + inputs["place"][0]
    y = x + (around + total)[:, None]
    return {"y": y, "last": y[:, -1], "next_total": total + x.sum(1) + 10 * inputs["shift"][:, None]}


def whole(inputs: Mapping[str, Tensor], first: int = FRAMES) -> Mapping[str, Tensor]:
    """Run all steps, of which the first may have another number of frames."""
    found: list[dict[str, Tensor]] = []
    carried: dict[str, Tensor] = {}
    frame = heard = 0
    for index, shift in enumerate(inputs["shift"]):
        frames = FRAMES if index else first
        given = {
            "x": inputs["x"][:, frame : frame + frames],
            "heard": inputs["heard"][:, heard : heard + 3 * frames - 2],
            "shift": shift,
            "place": inputs["place"][index],
            "image": inputs["image"],
        }
        found.append(step({**given, **carried}))
        carried = {"total": found[-1]["next_total"]}
        frame, heard = frame + frames, heard + 3 * frames - 3
    assert (frame, heard + 1) == (inputs["x"].shape[1], inputs["heard"].shape[1])
    return {
        "y": torch.cat([each["y"] for each in found], dim=1),
        "last": torch.stack([each["last"] for each in found]),
    }


def stepped(**changes: Any) -> Stepped:
    words: dict[str, Any] = {
        "inputs": {
            "x": StepInput(axis=1),
            "heard": StepInput(axis=1, overlap=1),
            "shift": StepInput(each_run=True, committed=0.0),
            "place": StepInput(make=lambda step: np.array([FRAMES * step])),
        },
        "outputs": {"y": 1, "last": None},
        "steps": STEPS,
        "runs": RUNS,
        "reference": whole,
    }
    return Stepped(net(), **(words | changes))


class Graph:
    """What runs each step in the place of a graph; keeps the inputs that it was given."""

    def __init__(self, **wrong: float) -> None:
        self.given: list[Arrays] = []
        self._wrong = wrong

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        self.given.append(dict(inputs))
        found = step(inputs)
        for name, error in self._wrong.items():
            found[name] = found[name] + error
        return {name: np.asarray(array, np.float32) for name, array in found.items()}


def rows_of(described: Stepped, graph: Graph, first: Graph | None = None, **more: Any) -> list[Any]:
    graphs = {described.next.label: (graph, "here")}
    if described.first is not None and first is not None:
        graphs[described.first.label] = (first, "there")
    return stepped_parity_rows(described, graphs, lambda _: BOUND, **more)


def test_steps_equal_the_whole_run_when_each_run_is_given_what_its_inputs_say() -> None:
    graph = Graph()
    described = stepped()
    rows = rows_of(described, graph)
    check_parity(rows)
    assert [(row.output, row.point) for row in rows[:4]] == [
        ("y", "step 1 of 3, run 1 of 2 (batch=2)"),
        ("last", "step 1 of 3, run 1 of 2 (batch=2)"),
        ("y", "step 1 of 3, run 2 of 2, which commits (batch=2)"),
        ("last", "step 1 of 3, run 2 of 2, which commits (batch=2)"),
    ]
    assert len(rows) == STEPS * RUNS * 2
    assert {(row.graph, row.verified_on, row.bound) for row in rows} == {("net", "here", BOUND)}
    examples = [example_inputs(net(), {"batch": 2}, seed) for seed in range(20)]
    total = np.full((2, WIDTH), 0.5, np.float32)
    for index, given in enumerate(graph.given):
        place, run = divmod(index, RUNS)
        np.testing.assert_array_equal(given["image"], examples[2]["image"])
        np.testing.assert_array_equal(given["x"], examples[3 + place]["x"])
        np.testing.assert_array_equal(given["place"], [FRAMES * place])
        # The last run commits: its shift is 0. The others' are new each time.
        shift = np.zeros(2) if run == RUNS - 1 else examples[3 + STEPS + place * RUNS + run]["shift"]
        np.testing.assert_array_equal(given["shift"], shift)
        heard = examples[3 + place]["heard"].copy()
        if place:
            heard[:, :1] = graph.given[(place - 1) * RUNS]["heard"][:, -1:]
        np.testing.assert_array_equal(given["heard"], heard)
        np.testing.assert_allclose(given["total"], total, rtol=1e-6)
        if run == RUNS - 1:
            total = total + given["x"].sum(1)
    assert all(array.dtype == np.float32 for name, array in graph.given[0].items() if name != "place")


def test_steps_have_the_sizes_of_a_point_when_one_is_given() -> None:
    rows = rows_of(stepped(runs=1), Graph(), point={"batch": 4})
    check_parity(rows)
    assert rows[0].point == "step 1 of 3 (batch=4)"
    assert rows[0].shape == (4, FRAMES, WIDTH)


def test_first_step_is_run_by_its_own_graph_when_there_is_one() -> None:
    first, graph = Graph(), Graph()
    own = replace(net(1, "first", carries=False), axes=(*net().axes, Axis("one", 1, 1, 1)))
    described = stepped(first=own, reference=partial(whole, first=1))
    rows = rows_of(described, graph, first)
    check_parity(rows)
    assert [row.graph for row in rows] == ["net/first"] * 4 + ["net"] * 8
    assert rows[0].point == "step 1 of 3, run 1 of 2 (batch=2, one=1)"
    assert rows[4].point == "step 2 of 3, run 1 of 2 (batch=2)"
    assert [row.verified_on for row in rows] == ["there"] * 4 + ["here"] * 8
    assert [row.shape for row in rows[::2]] == [(2, 1, WIDTH)] * 2 + [(2, FRAMES, WIDTH)] * 4
    assert all("total" not in given for given in first.given)
    assert (len(first.given), len(graph.given)) == (RUNS, RUNS * (STEPS - 1))


@pytest.mark.parametrize(
    ("output", "failed"),
    [("y", [0, 2, 4, 6, 8, 10]), ("last", [1, 3, 5, 7, 9, 11]), ("next_total", range(4, 12))],
)
def test_steps_fail_from_where_their_graph_is_wrong_on(output: str, failed: Any) -> None:
    rows = rows_of(stepped(), Graph(**{output: 0.1}))
    assert [index for index, row in enumerate(rows) if row.failures] == list(failed)


def test_bound_is_of_the_output_that_is_compared() -> None:
    described, graph = stepped(), Graph()
    rows = stepped_parity_rows(
        described,
        {"net": (graph, "here")},
        lambda output: Tolerance(1.0, 1.0, 0.0) if output.name == "last" else BOUND,
    )
    assert {(row.output, row.bound.max_abs) for row in rows} == {("y", 1e-4), ("last", 1.0)}


def test_made_input_is_refused_when_it_does_not_spread_over_its_shape() -> None:
    inputs = {**stepped().inputs, "place": StepInput(make=lambda step: np.array([step, step]))}
    with pytest.raises(InvalidRequest) as failure:
        rows_of(stepped(inputs=inputs), Graph())
    text = "the values made for place must have shape [1], or one that broadcasts to it, got [2]"
    assert str(failure.value) == f"net: {text}"


def test_whole_run_is_refused_when_it_has_another_number_of_places() -> None:
    def short(inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found = whole(inputs)
        return {**found, "y": found["y"][:, 1:]}

    with pytest.raises(
        InvalidRequest,
        match=r"net: the whole run must return size 6 of y along dimension 1 for 3 steps, got \[2, 5, 3\]",
    ):
        rows_of(stepped(reference=short), Graph())


def graph_file(path: Path, add: float = 0.0) -> Path:
    """Write y = x + total + add and next_total = y as an ONNX graph."""
    size = ["batch", WIDTH]
    tensors = {
        name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size)
        for name in ("x", "total", "y", "next_total")
    }
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Add", ["x", "total"], ["sum"]),
            onnx.helper.make_node("Add", ["sum", "add"], ["y"]),
            onnx.helper.make_node("Identity", ["y"], ["next_total"]),
        ],
        "net",
        [tensors["x"], tensors["total"]],
        [tensors["y"], tensors["next_total"]],
        [onnx.numpy_helper.from_array(np.array([add], np.float32), "add")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, path)
    return path


def summing() -> Stepped:
    size = ("batch", WIDTH)
    described = replace(
        net(),
        inputs=(floats("x", *size), floats("total", *size, initial=0.0)),
        outputs=(floats("y", *size), floats("next_total", *size)),
    )
    return Stepped(described, {"x": StepInput()}, {"y": None}, 4, lambda inputs: {"y": inputs["x"].cumsum(0)})


def test_graphs_are_run_by_onnx_runtime_when_steps_are_verified(tmp_path: Path) -> None:
    described = summing()
    rows = verify_stepped(described, {"net": graph_file(tmp_path / "model.onnx")}, Precision.FP32)
    check_parity(rows)
    assert [row.point for row in rows] == [f"step {i} of 4 (batch=2)" for i in (1, 2, 3, 4)]
    assert {(row.verified_on, row.bound) for row in rows} == {("ONNX Runtime CPU", BOUND)}
    wrong = verify_stepped(
        described, {"net": graph_file(tmp_path / "model.onnx", 1.0)}, Precision.FP32, {"batch": 3}, Device.CPU
    )
    assert [row.max_abs for row in wrong] == pytest.approx([1, 2, 3, 4], rel=1e-5)
    assert wrong[0].shape == (3, WIDTH)
    with pytest.raises(ParityFailed, match=r"net: y at step 1 of 4 \(batch=3\)"):
        check_parity(wrong)
