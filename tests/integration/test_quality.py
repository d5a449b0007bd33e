"""`slipway bench quality` on the trained checkpoints: what they make means what it should."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from slipway_benchmarks.pipelines.video import REQUEST, VideoOptions
from slipway_benchmarks.quality.graphs import place_graphs
from slipway_cli import root
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.graph.onnx import example_inputs
from slipway_export.options import ExportOptions
from slipway_export.run import components_of, run_export
from slipway_export.spec import Engine, Precision
from slipway_serving.runtime.in_process import InProcessModels, read_config

pytestmark = pytest.mark.long


def measured(line: str, output: Path) -> dict[str, Any]:
    """The JSON of a run, whose chart is beside it."""
    assert root.run(["bench", "quality", *line.split(), "--quiet", "--output", str(output)]) == 0
    assert (output / "quality.png").read_bytes().startswith(b"\x89PNG\r\n")
    found: dict[str, Any] = json.loads((output / "quality.json").read_text())
    return found


def test_videos_show_what_unseen_prompts_say_plainly_and_with_shortcuts(tmp_path: Path) -> None:
    found = measured("--precision fp32 --samples 2", tmp_path)
    shortcuts = ("cache_threshold 0.1", "cache_threshold 0.2", "guidance_stop 0.5")
    assert list(found["subjects"]) == ["fp32", *(f"fp32, {each}" for each in shortcuts)]
    assert found["references"]["the judge, on renders"]["all"] > 0.95
    assert found["subjects"]["fp32"]["colour"] == 1
    assert found["subjects"]["fp32"]["all"] >= 0.5
    assert found["not_run"] == {}
    assert (tmp_path / "quality_videos.png").stat().st_size > 10_000


def test_pictures_go_on_as_unseen_prompts_say_in_both_orders_and_with_shortcuts(tmp_path: Path) -> None:
    found = measured("--family framepack_i2v --precision fp32 --samples 1", tmp_path)
    ways = ("forward", "cache_threshold 0.1", "cache_threshold 0.2")
    assert list(found["subjects"]) == ["fp32", *(f"fp32, {each}" for each in ways)]
    assert found["references"]["the judge, on renders"]["all"] > 0.95
    for way in ("fp32", "fp32, forward"):
        assert found["subjects"][way]["colour"] == found["subjects"][way]["motion"] == 1
    assert found["not_run"] == {}
    assert (tmp_path / "quality_videos.png").stat().st_size > 10_000


def test_blocks_of_unseen_worlds_obey_their_keys_in_every_mode(tmp_path: Path) -> None:
    found = measured("--family matrix_game --precision fp32 --samples 1", tmp_path)
    assert list(found["subjects"]) == ["fp32, universal", "fp32, gta_drive", "fp32, templerun"]
    assert found["references"]["the judge, on renders"]["obeyed"] > 0.95
    for mode, least in {"universal": 0.9, "gta_drive": 0.9, "templerun": 0.75}.items():
        assert found["subjects"][f"fp32, {mode}"]["obeyed"] >= least
    assert found["not_run"] == {}
    assert (tmp_path / "quality_videos.png").stat().st_size > 10_000


def test_ready_word_is_heard_and_little_else(tmp_path: Path) -> None:
    found = measured("--family wakeword --precision fp32 --samples 10", tmp_path)
    heard = found["subjects"]["fp32"]
    assert heard["words"] == 10
    assert heard["false_rejects"] <= 0.2
    assert heard["false_accepts_an_hour"] * heard["hours"] <= 1


def test_corrected_trajectories_are_at_most_half_as_wrong(tmp_path: Path) -> None:
    found = measured("--family airimu --precision fp32 --samples 3", tmp_path)
    corrected = found["subjects"]["fp32"]
    assert all(corrected[f"{error}_share"] < 0.5 for error in ("ate", "aoe", "rte", "roe"))
    assert corrected["recordings_halved"] == 1


def test_graph_for_tensorrt_takes_the_place_of_the_served_one(checkpoint: Path, tmp_path: Path) -> None:
    family = family_named("wan_t2v")
    axes = VideoOptions(request=replace(REQUEST, frames=5, height=32, width=32)).axes
    options = ExportOptions(str(checkpoint), tmp_path, components=("denoiser_high",), axes=axes)
    run_export(family, options)
    folder = tmp_path / "wan_t2v_denoiser_high"
    fused = {node.domain for node in onnx.load(folder / "1" / "model.onnx").graph.node}
    asked = replace(options, precision=Precision.BF16)
    assert place_graphs(family, asked, Engine.TENSORRT) == ("denoiser_high",)
    made = onnx.load(folder / "1" / "model.onnx").graph
    assert "com.microsoft" in fused
    assert {node.domain for node in made.node} == {""}
    assert read_config(folder)["optimization"]["graph"]["level"] == -1
    # ONNX Runtime computes no bfloat16 on a CPU, so the graph has float32 with the values of bfloat16.
    with open_checkpoint(family, str(checkpoint)) as opened:
        component = components_of(family, opened, options)[0]
    inputs = example_inputs(component, component.points()["opt"], 0)
    answer = InProcessModels(tmp_path, threads=1).call(folder.name, inputs, ["sample"])
    assert np.isfinite(answer["sample"]).all()
