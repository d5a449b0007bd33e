"""ONNX Runtime tells nobody of what is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from server_fixtures import affine

_SESSION = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("import slipway_serving.graph", False),
        ("import os; os.environ.pop('ORT_DISABLE_TELEMETRY', None)", True),
    ],
)
def test_onnx_runtime_keeps_nothing_to_be_sent_when_our_code_runs_it(
    tmp_path: Path, first: str, told: bool
) -> None:
    onnx.save(affine(), tmp_path / "affine.onnx")
    home = tmp_path / "home"
    home.mkdir()
    # Nothing else: it keeps silent by itself in what looks like a continuous integration.
    environment = {"PATH": os.environ["PATH"], "HOME": str(home)}
    subprocess.run(
        [sys.executable, "-c", f"{first}\n{_SESSION}", str(tmp_path / "affine.onnx")],
        env=environment,
        check=True,
    )
    assert any(home.rglob("onnxruntime.db")) == told
