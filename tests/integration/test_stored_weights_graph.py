"""The graph of a network whose weights stay on disk while it is exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.graph.onnx import export_graph
from slipway_export.spec import Loading, Precision

pytestmark = pytest.mark.long

WAN = family_named("wan_t2v")


def test_graph_has_the_same_tensors_when_weights_stay_on_disk(checkpoint: Path, tmp_path: Path) -> None:
    # Of both types, since diffusers keeps some of a half-precision network in float32.
    precision = Precision.BF16
    (tmp_path / "read").mkdir()
    (tmp_path / "unread").mkdir()
    with open_checkpoint(WAN, str(checkpoint)) as opened:
        components = WAN.plan(opened, axes_of(WAN, opened, {})).components
        component = next(each for each in components if each.label == "denoiser_high")
        for name, loading in (("read", Loading.READ), ("unread", Loading.ON_DISK)):
            export_graph(component, component.load(precision, loading), tmp_path / f"{name}/g.onnx", opset=23)
    read, unread = (onnx.load(tmp_path / name / "g.onnx").graph for name in ("read", "unread"))
    assert [node.op_type for node in read.node] == [node.op_type for node in unread.node]
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in read.initializer}
    assert arrays.keys() == {tensor.name for tensor in unread.initializer}
    assert any(array.any() for array in arrays.values())
    for tensor in unread.initializer:
        assert np.array_equal(arrays[tensor.name], numpy_helper.to_array(tensor)), tensor.name
