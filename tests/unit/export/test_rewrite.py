"""Rewrites of exported graphs: what ONNX Runtime refuses as it is runs afterwards, with the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from slipway_export.graph.rewrite import unify_norm_types

EPS = 1e-6
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 8)).astype(np.float32)
SCALE = RANDOM.standard_normal(8).astype(np.float32)


def norm(x_type: Any, scale_type: Any, out: ir.DataType) -> ir.Model:
    """Return a graph of one norm whose result is used twice, as the residual stream of a transformer is."""
    x = ir.Value(
        name="x", type=ir.TensorType(ir.DataType.from_numpy(np.dtype(x_type))), shape=ir.Shape(X.shape)
    )
    scale = ir.Value(name="scale", const_value=ir.tensor(SCALE.astype(scale_type), name="scale"))
    normed = ir.node("RMSNormalization", [x, scale], {"epsilon": EPS})
    normed.outputs[0].dtype, normed.outputs[0].shape = out, ir.Shape(X.shape)
    doubled = ir.node("Add", [normed.outputs[0], normed.outputs[0]])
    for value, name in ((normed.outputs[0], "normed"), (doubled.outputs[0], "doubled")):
        value.name, value.dtype, value.shape = name, out, ir.Shape(X.shape)
    # The norm itself must stay an output under its name, as an output of a network would.
    same = ir.node("Identity", [normed.outputs[0]])
    same.outputs[0].name, same.outputs[0].dtype, same.outputs[0].shape = "same", out, ir.Shape(X.shape)
    graph = ir.Graph(
        [x],
        [doubled.outputs[0], same.outputs[0]],
        nodes=[normed, doubled, same],
        initializers=[scale],
        opset_imports={"": 23},
        name="g",
    )
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("x_type", "scale_type"), [(np.float32, np.float16), (np.float16, np.float32), (np.float32, np.float32)]
)
def test_norm_of_two_types_runs_and_gives_the_same_when_it_is_rewritten(
    tmp_path: Path, x_type: Any, scale_type: Any
) -> None:
    out = ir.DataType.from_numpy(np.dtype(scale_type))
    model = norm(x_type, scale_type, out)
    differ = x_type is not scale_type
    ir.save(model, tmp_path / "before.onnx")
    if differ:
        with pytest.raises(Exception, match="bound to different types"):
            onnxruntime.InferenceSession(tmp_path / "before.onnx")
    assert unify_norm_types(model) == differ
    ir.save(model, tmp_path / "after.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "after.onnx")
    doubled, same = session.run(["doubled", "same"], {"x": X.astype(x_type)})
    full = X.astype(x_type).astype(np.float64)
    expected = full / np.sqrt((full**2).mean(-1, keepdims=True) + EPS) * SCALE.astype(scale_type)
    assert doubled.dtype == same.dtype == scale_type
    np.testing.assert_allclose(same, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(doubled, 2 * expected, rtol=2e-3, atol=2e-3)
