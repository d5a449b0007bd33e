"""Which ONNX operator set a graph is written in where none is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slipway_export.graph.opset import DEFAULT_OPSET, choose_opset
from slipway_export.spec import Component, Engine, Precision, Tolerance
from slipway_serving.protocol.errors import InvalidRequest


def graph(lowest: Mapping[Precision, int]) -> Component:
    bounds = dict.fromkeys(lowest, Tolerance(1.0, 1.0, 0.0))
    return Component("graph", (), (), (), lambda *_: pytest.fail("no network"), bounds, lowest_opset=lowest)


GRAPH = graph({Precision.FP32: 17, Precision.INT8: 19})


@pytest.mark.parametrize(
    ("precision", "asked", "engine", "usual", "opset"),
    [
        (Precision.FP32, None, Engine.ONNXRUNTIME, None, DEFAULT_OPSET),
        (Precision.FP32, None, Engine.ONNXRUNTIME, 17, 17),
        (Precision.INT8, None, Engine.ONNXRUNTIME, 17, 19),
        (Precision.FP32, 21, Engine.ONNXRUNTIME, 17, 21),
        (Precision.INT8, None, Engine.PORTABLE, None, 19),
        (Precision.FP32, None, Engine.TENSORRT, None, 22),
        (Precision.FP32, 18, Engine.TENSORRT, None, 18),
        (Precision.FP32, None, Engine.TENSORRT, 17, 17),
    ],
)
def test_opset_is_asked_or_usual_or_default_when_the_graph_allows_it(
    precision: Precision, asked: int | None, engine: Engine, usual: int | None, opset: int
) -> None:
    assert choose_opset([GRAPH], lambda _: precision, asked, engine, usual) == opset


def test_opset_is_refused_when_it_is_asked_below_the_lowest() -> None:
    with pytest.raises(InvalidRequest, match=r"opset-version must be 19 to 23 for int8, got 17"):
        choose_opset([GRAPH], lambda _: Precision.INT8, 17, usual=17)


@pytest.mark.parametrize("engine", [Engine.TENSORRT, Engine.PORTABLE])
def test_opset_is_refused_when_its_attention_is_no_operator_of_the_engines_readers(engine: Engine) -> None:
    with pytest.raises(
        InvalidRequest, match=f"opset-version must be 17 to 22 for fp32, got 23 with engine {engine.value};"
    ):
        choose_opset([GRAPH], lambda _: Precision.FP32, 23, engine)
