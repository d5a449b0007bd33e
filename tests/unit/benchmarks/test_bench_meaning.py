"""What `slipway bench quality` exports to be judged."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from slipway_benchmarks.quality import benchmark
from slipway_benchmarks.quality.graphs import place_graphs
from slipway_cli import root
from slipway_export.families import family_named
from slipway_export.options import ExportOptions
from slipway_export.spec import Engine, Family, Precision
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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--graphs torch", "graphs must be one of onnxruntime, tensorrt, got torch"),
        ("--graphs tensorrt --url localhost:1", "graphs must be left out with --url"),
    ],
)
def test_graphs_are_refused_before_any_work_when_onnxruntime_cannot_serve_them(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert root.run(["bench", "quality", *flags.split(), "--output", str(tmp_path / "never")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


def test_graphs_are_refused_when_no_component_has_the_precision(checkpoint: Path, tmp_path: Path) -> None:
    options = ExportOptions(str(checkpoint), tmp_path, precision=Precision.FP64)
    with pytest.raises(InvalidRequest, match="precision must be one that a graph for tensorrt has, got fp64"):
        place_graphs(family_named("wan_t2v"), options, Engine.TENSORRT)


def test_family_is_judged_by_the_entry_point_of_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def judgement(options: benchmark.MeaningOptions) -> None:
        raise InvalidRequest(f"judging {options.family}")

    module = ModuleType("judge_of_pictures")
    vars(module)["judgement"] = judgement
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(InvalidRequest, match="pictures in the group slipway.judgements"):
        benchmark.run(benchmark.MeaningOptions(family="pictures"), print)
    entry = EntryPoint("pictures", module.__name__, benchmark.GROUP)
    monkeypatch.setattr(benchmark, "entry_points", lambda group: [entry] if group == benchmark.GROUP else [])
    with pytest.raises(InvalidRequest, match="judging pictures"):
        benchmark.run(benchmark.MeaningOptions(family="pictures"), print)
