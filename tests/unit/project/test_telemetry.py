"""ONNX Runtime tells nobody of what is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
from server_fixtures import affine

_CODE = "import slipway_serving.runtime.graph, onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"


def test_onnx_runtime_keeps_nothing_to_be_sent_when_our_code_runs_it(tmp_path: Path) -> None:
    onnx.save(affine(), tmp_path / "affine.onnx")
    home = tmp_path / "home"
    home.mkdir()
    # Nothing else: it keeps silent by itself in what looks like a continuous integration.
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    subprocess.run([sys.executable, "-c", _CODE, str(tmp_path / "affine.onnx")], env=environment, check=True)
    assert list(home.rglob("*")) == []
