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
        (Engine.ONNXRUNTIME, {Precision.FP8}),
        (Engine.TENSORRT, {Precision.FP64}),
        (Engine.PORTABLE, {Precision.INT4, Precision.FP8, Precision.FP64}),
        (Engine.TORCH, {Precision.INT8, Precision.INT4, Precision.FP8}),
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


@pytest.mark.parametrize(
    ("engine", "precision", "problem"),
    [
        (
            "onnxruntime",
            "fp8",
            "precision must be one of fp64, fp32, fp16, bf16, int8, int4 for engine onnxruntime, whose"
            " readers do not know the operators of others, got fp8; try --precision fp16, or --engine"
            " tensorrt",
        ),
        ("portable", "fp8", "precision must be one of fp32, fp16, bf16, int8 for engine portable"),
        ("portable", "int4", "precision must be one of fp32, fp16, bf16, int8 for engine portable"),
        (
            "tensorrt",
            "fp64",
            "precision must be one of fp32, fp16, bf16, int8, fp8, int4 for engine tensorrt",
        ),
    ],
)
def test_export_is_refused_before_any_work_when_the_engine_lacks_the_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, precision: str, problem: str
) -> None:
    options = ["--checkpoint", "nowhere", "--repository", str(tmp_path), "--check-only"]
    assert run(["export", "wan_t2v", *options, "--engine", engine, "--precision", precision]) == 2
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
