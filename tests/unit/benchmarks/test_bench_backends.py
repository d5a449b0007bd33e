"""`slipway bench backends`: what it refuses, and what its tables and its JSON say."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from installed_triton import install_triton
from rich.console import Console

from slipway_benchmarks.chart import draw_backends
from slipway_benchmarks.servers.backends import (
    BackendsOptions,
    BackendsResult,
    Compared,
    Held,
    backends_json,
    print_backends,
)
from slipway_benchmarks.stats import ratios, summarize
from slipway_cli.root import run

NATIVE, PYTHON = [120.0, 150.0, 180.0], [100.0, 100.0, 120.0]
RESULT = BackendsResult(
    BackendsOptions(rounds=3, seconds=2.0),
    "2.51.0",
    {"clips, 8 clients": Compared(summarize(NATIVE), summarize(PYTHON), summarize(ratios(NATIVE, PYTHON)))},
    {"native": Held(11, 1238 * 2**20), "python": Held(18, 1449 * 2**20)},
)


def test_triton_without_a_c_backend_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    triton = install_triton(tmp_path / "tritonserver")
    assert run(["bench", "backends", "--triton-dir", str(triton), "--output", str(tmp_path / "out")]) == 1
    assert "onnxruntime-backend must be python with the Triton in" in capsys.readouterr().err


def test_tables_json_and_chart_have_the_ratio_of_each_case(tmp_path: Path) -> None:
    text = StringIO()
    print_backends(Console(file=text, width=120), RESULT)
    assert "1.50 (1.20 to 1.50)" in text.getvalue()
    assert all(figure in text.getvalue() for figure in ("1238", "1449", "150.0", "100.0"))
    found = json.loads(json.dumps(backends_json(RESULT, {"cpu": "x"})))
    assert found["cases"]["clips, 8 clients"]["ratio"]["median"] == 1.5
    draw_backends(RESULT, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000
