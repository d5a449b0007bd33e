"""What is true of every graph of a repository."""

from __future__ import annotations

from pathlib import Path

import onnx


def check_opset(repository: Path, opset: int, ir_version: int) -> None:
    """Check the graphs' operator set and file format; of graphs of standard operators the rest too."""
    paths = [*repository.glob("*/1/*.onnx")]
    assert paths
    for path in paths:
        model = onnx.load(path)
        versions = {entry.domain: entry.version for entry in model.opset_import}
        assert (versions[""], model.ir_version) == (opset, ir_version)
        if versions.keys() == {""}:
            onnx.checker.check_model(model)
