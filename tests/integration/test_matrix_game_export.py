"""The graphs of `matrix_game`, exported from its tiny checkpoint and verified."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.run import run_export
from slipway_export.spec import Precision


@pytest.mark.long
def test_block_denoiser_is_within_bounds_over_eight_blocks_at_opset_17(tmp_path: Path) -> None:
    output = tmp_path / "block.onnx"
    options = ExportOptions(
        "tiny", output=output, variant="gta_drive", components=("gta_drive/block_denoiser",), opset=17
    )
    rows = run_export(family_named("matrix_game"), options).rows
    steps = [row for row in rows if "of 8" in row.point]
    # Each block is run twice, of which the second commits; from the third on a frame has left the window.
    assert len(steps) == 16
    assert not any(row.failures for row in rows)
    assert all(row.max_abs < 1e-4 for row in steps)
    assert onnx.load(output, load_external_data=False).opset_import[0].version == 17


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "operator"), [(Precision.INT8, "MatMulInteger"), (Precision.INT4, "MatMulNBits")]
)
def test_block_denoiser_has_integer_weights(tmp_path: Path, precision: Precision, operator: str) -> None:
    output = tmp_path / "block.onnx"
    options = ExportOptions(
        "tiny",
        output=output,
        precision=precision,
        variant="templerun",
        components=("templerun/block_denoiser",),
    )
    rows = run_export(family_named("matrix_game"), options).rows
    assert not any(row.failures for row in rows)
    assert all(row.relative_l2 > 1e-3 for row in rows)
    assert operator in {node.op_type for node in onnx.load(output, load_external_data=False).graph.node}
