"""The graphs of `matrix_game`, exported from its tiny checkpoint and verified."""

from __future__ import annotations

from pathlib import Path

import onnx

from slipway_export.families import family_named
from slipway_export.run import ExportOptions, run_export


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
