"""Which precisions and operators the graphs of an engine may hold."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from slipway_cli.root import run
from slipway_export.graph.dialect import check_operators, check_precision
from slipway_export.spec import Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest


def graph_with(folder: Path, *nodes: onnx.NodeProto) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    path = folder / "graph.onnx"
    onnx.save(helper.make_model(helper.make_graph(list(nodes), "graph", [x], [y])), path)
    return path


def inside_a_branch(node: onnx.NodeProto) -> onnx.NodeProto:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    body = helper.make_graph([node], "body", [], [y])
    return helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)


CONTRIB = helper.make_node("MatMulNBits", ["x"], ["y"], domain="com.microsoft")
INTEGER = helper.make_node("MatMulInteger", ["x", "x"], ["y"])
PLAIN = helper.make_node("Abs", ["x"], ["y"])


@pytest.mark.parametrize(
    ("engine", "node", "named"),
    [
        (Engine.TENSORRT, CONTRIB, "com.microsoft.MatMulNBits"),
        (Engine.TENSORRT, INTEGER, "MatMulInteger"),
        (Engine.TENSORRT, inside_a_branch(INTEGER), "MatMulInteger"),
        (Engine.PORTABLE, CONTRIB, "com.microsoft.MatMulNBits"),
        (Engine.PORTABLE, inside_a_branch(CONTRIB), "com.microsoft.MatMulNBits"),
    ],
)
def test_graph_is_refused_when_it_holds_what_its_readers_do_not_know(
    tmp_path: Path, engine: Engine, node: onnx.NodeProto, named: str
) -> None:
    path = graph_with(tmp_path, PLAIN, node)
    with pytest.raises(
        InvalidRequest, match=f"here: operators must be .* engine {engine.value}.* got {named};"
    ):
        check_operators(path, engine, "here")


@pytest.mark.parametrize(
    ("engine", "node"),
    [(Engine.ONNXRUNTIME, CONTRIB), (Engine.PORTABLE, INTEGER), (Engine.TENSORRT, inside_a_branch(PLAIN))],
)
def test_graph_is_taken_when_its_readers_know_all_of_it(
    tmp_path: Path, engine: Engine, node: onnx.NodeProto
) -> None:
    check_operators(graph_with(tmp_path, node), engine, "here")


@pytest.mark.parametrize(
    ("engine", "refused"),
    [
        (Engine.ONNXRUNTIME, set()),
        (Engine.TENSORRT, {Precision.INT8, Precision.INT4, Precision.FP64}),
        (Engine.PORTABLE, {Precision.INT4, Precision.FP64}),
    ],
)
def test_precision_is_refused_when_an_engine_has_no_operators_for_it(
    engine: Engine, refused: set[Precision]
) -> None:
    for precision in Precision:
        if precision in refused:
            with pytest.raises(
                InvalidRequest, match=f"for engine {engine.value}.* got {precision.value}; try"
            ):
                check_precision(engine, precision)
        else:
            check_precision(engine, precision)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_export_for_tensorrt_is_refused_before_any_work_when_integers_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    options = ["--checkpoint", "nowhere", "--repository", str(tmp_path), "--check-only"]
    assert run(["export", "wan_t2v", *options, "--engine", "tensorrt", "--precision", precision]) == 2
    problem = "precision must be one of fp32, fp16, bf16 for engine tensorrt, whose readers do not know"
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
