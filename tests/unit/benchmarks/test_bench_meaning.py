"""What `slipway bench quality` exports to be judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway_benchmarks.quality import benchmark
from slipway_cli import root
from slipway_export.options import ExportOptions
from slipway_export.spec import Family, Precision
from slipway_serving.protocol.errors import InvalidRequest


def test_component_keeps_its_precision_in_every_export(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[ExportOptions] = []

    def refuse(family: Family, options: ExportOptions) -> None:
        asked.append(options)
        raise InvalidRequest("that is enough")

    monkeypatch.setattr(benchmark, "run_export", refuse)
    line = "bench quality --family airimu --precision fp64 --precision codenet=fp32 --samples 1"
    assert root.run([*line.split(), "--output", str(tmp_path)]) == 2
    assert [(options.precision, options.precisions) for options in asked] == [
        (Precision.FP64, {"codenet": Precision.FP32})
    ]
    assert "exporting fp64, codenet fp32" in capsys.readouterr().err
