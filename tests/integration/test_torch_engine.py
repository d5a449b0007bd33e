"""Components that PyTorch serves beside graphs, in process and by Triton, against graphs of a checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio
from wan_reference import psnr

from slipway_cli import root
from slipway_client import Client, Frames, TextToVideoRequest
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.requested import TorchRequest
from slipway_export.families import family_named
from slipway_export.graph.onnx import example_inputs
from slipway_export.options import ExportOptions
from slipway_export.run import ExportResult, run_export
from slipway_export.spec import Engine
from slipway_export.verification.placed import verify_placed
from slipway_serving.families.wan_t2v.facts import PipelineFacts
from slipway_serving.families.wan_t2v.pipeline import generate
from slipway_serving.protocol.events import FramesPart
from slipway_serving.runtime.in_process import InProcessModels, read_config
from slipway_serving.runtime.interruption import Interruption
from slipway_serving.triton.server import Server, ServerConfig

pytestmark = pytest.mark.long

WAN = family_named("wan_t2v")
HIGH, LOW, ENCODER, DECODER = (
    f"wan_t2v_{name}" for name in ("denoiser_high", "denoiser_low", "text_encoder", "vae_decoder")
)
BY_TORCH = ("text_encoder", "denoiser_high", "vae_decoder")
REQUEST = TextToVideoRequest(
    "a lake at night", negative_prompt="blur", frames=9, height=32, width=32, steps=6, seed=7, output="frames"
)


@pytest.fixture(scope="module")
def mixed(
    checkpoint: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ExportResult]:
    """The tiny repository, its encoder, first denoiser and decoder by PyTorch; what that reported."""
    models = Path(shutil.copytree(repository, tmp_path_factory.mktemp("mixed") / "models"))
    options = ExportOptions(
        str(checkpoint),
        models,
        engines=dict.fromkeys(BY_TORCH, Engine.TORCH),
        components=BY_TORCH,
    )
    return models, run_export(WAN, options)


def facts_of(models: Path, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((models / name / "manifest.json").read_text())
    return facts


def video(models: Path) -> np.ndarray:
    opened = InProcessModels(models, threads=1)
    facts = PipelineFacts.read(models / "wan_t2v" / "1" / "pipeline.json")
    events = generate(REQUEST, facts, opened, Interruption("wan_t2v", lambda: False))
    frames = [event.frames for event in events if isinstance(event, FramesPart)]
    opened.close()
    return np.concatenate(frames)


def denoised(models: Path, name: str) -> np.ndarray:
    """Return what a denoiser answers in process to a batch at its traced sizes."""
    with open_checkpoint(WAN, "tiny") as opened:
        (component,) = (
            c for c in WAN.plan(opened, WAN.presets["tiny"].axes).components if f"wan_t2v_{c.name}" == name
        )
    given = example_inputs(component, component.points()["opt"])
    given["timestep"] = given["timestep"].reshape(-1, 1)  # as callers send it
    in_process = InProcessModels(models, threads=1)
    sample = in_process.call(name, given, ["sample"])["sample"]
    in_process.close()
    return sample


def decibels(a: np.ndarray, b: np.ndarray) -> float:
    return float(peak_signal_noise_ratio(b, a, data_range=b.max() - b.min()))


def test_video_is_the_same_when_pytorch_serves_some_of_its_models(
    repository: Path, mixed: tuple[Path, ExportResult]
) -> None:
    models, _ = mixed
    found = psnr(video(models), video(repository))
    print(f"text encoder, a denoiser and the decoder by torch: PSNR {found:.1f} dB to ONNX Runtime")
    assert found >= 45


def test_model_is_placed_with_its_files_and_verified_by_the_program_that_serves_it(
    checkpoint: Path, repository: Path, mixed: tuple[Path, ExportResult]
) -> None:
    models, result = mixed
    assert result.models == (ENCODER, HIGH, DECODER)
    steps = [row for row in result.rows if row.point.startswith("step")]
    points = [row for row in result.rows if row not in steps]
    assert {row.point.split()[0] for row in points} == {"min", "opt", "max", "unseen"}
    assert all(row.max_abs == 0.0 for row in points)  # float32 in eager: the same arithmetic
    assert {row.graph for row in steps} == {"vae_decoder/first", "vae_decoder/next"}
    assert {row.verified_on for row in result.rows} == {
        "PyTorch CPU, the placed files by the served program (fp32, eager)"
    }
    facts = facts_of(models, HIGH)
    assert (facts["engine"], facts["precision"]) == ("torch", {"model": "fp32"})
    assert facts["torch"]["model"]["precision"] == "fp32"
    assert "opset" not in facts
    weights = "transformer/diffusion_pytorch_model.safetensors"
    placed = models / HIGH / "1" / "checkpoint" / weights
    assert placed.samefile(checkpoint / weights)
    assert f"1/checkpoint/{weights}" in facts["files"]
    assert not list((models / HIGH).rglob("*.onnx*"))
    assert not list((models / HIGH).rglob("transformer_2/*.safetensors"))
    # A caller sees the same model.
    ours, graphs = read_config(models / HIGH), read_config(repository / HIGH)
    assert ours["backend"] == "python"
    for key in ("input", "output", "max_batch_size", "model_warmup", "instance_group"):
        assert ours[key] == graphs[key]


def test_graphs_of_an_authored_model_are_networks_where_pytorch_runs_them(
    checkpoint: Path, mixed: tuple[Path, ExportResult]
) -> None:
    folder = mixed[0] / DECODER / "1"
    described = {f"{graph}.{kind}.json" for graph in ("first", "next") for kind in ("network", "torch")}
    assert {path.name for path in folder.iterdir()} == {*described, "checkpoint", "model.py"}
    weights = "vae/diffusion_pytorch_model.safetensors"
    assert (folder / "checkpoint" / weights).samefile(checkpoint / weights)
    facts = facts_of(mixed[0], DECODER)
    assert facts["engine"] == "torch"
    assert {graph: each["precision"] for graph, each in facts["torch"].items()} == {
        "first": "fp32",
        "next": "fp32",
    }


def test_weights_of_8_bits_stay_close(checkpoint: Path, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    models = Path(shutil.copytree(repository, tmp_path / "models"))
    options = ExportOptions(
        str(checkpoint),
        models,
        engine=Engine.TORCH,
        torch=TorchRequest(weights={"": "int8"}),
        components=("denoiser_low",),
    )
    rows = run_export(WAN, options).rows
    assert all(1e-5 < row.relative_l2 < row.bound.relative_l2 for row in rows)
    found = decibels(denoised(models, LOW), denoised(repository, LOW))
    whole = psnr(video(models), video(repository))
    print(
        f"a denoiser with int8 weights: PSNR {found:.1f} dB a step, {whole:.1f} dB a video to float32 graphs"
    )
    assert found >= 30
    assert 30 <= whole < 100


def test_graphs_are_not_made_again_for_another_engine_beside_them(
    checkpoint: Path, mixed: tuple[Path, ExportResult]
) -> None:
    models, _ = mixed
    said: list[str] = []
    options = ExportOptions(
        str(checkpoint),
        models,
        engine=Engine.TORCH,
        engines={"denoiser_low": Engine.ONNXRUNTIME},
        components=("denoiser_high", "denoiser_low"),
    )
    run_export(WAN, options, said.append)
    taken = [line for line in said if "unchanged, reused from the repository" in line]
    assert len(taken) == 2
    assert facts_of(models, HIGH)["engine"] == "torch"
    assert facts_of(models, LOW)["engine"] == "onnxruntime"


def test_placed_model_is_verified_again_by_its_program(
    mixed: tuple[Path, ExportResult], tmp_path: Path
) -> None:
    models = tmp_path / "models"
    for name in (HIGH, DECODER):
        shutil.copytree(mixed[0] / name, models / name)
    rows = verify_placed(models, points=("min", "steps"))
    assert {row.graph for row in rows} == {"denoiser_high", "vae_decoder/first", "vae_decoder/next"}
    assert any(row.point.startswith("step 4 of 4") for row in rows)
    assert all("served program" in row.verified_on for row in rows)


def test_triton_answers_as_the_graph_does_when_pytorch_serves_the_model(
    repository: Path, mixed: tuple[Path, ExportResult], tmp_path: Path
) -> None:
    # Without the checkpoint's folder: a model has what it needs.
    models = Path(shutil.copytree(mixed[0], tmp_path / "models"))
    expected = denoised(repository, HIGH)
    with open_checkpoint(WAN, "tiny") as opened:
        component = WAN.plan(opened, WAN.presets["tiny"].axes).components[1]
    given = example_inputs(component, component.points()["opt"])
    given["timestep"] = given["timestep"].reshape(-1, 1)
    with (
        Server(ServerConfig(models, http_port=0, grpc_port=0, metrics_port=0)) as server,
        Client(server.grpc_url) as client,
    ):
        answer = client.infer(HIGH, given)
        *_, result = client.generate(REQUEST)
        wrong = {**given, "timestep": given["timestep"][:1]}
        with pytest.raises(Exception, match="batch"):
            client.infer(HIGH, wrong)
    assert decibels(answer["sample"], expected) >= 45
    assert isinstance(result, Frames)
    assert psnr(result.array, video(repository)) >= 45


def test_plan_and_refusals_know_the_engine(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mixed: tuple[Path, ExportResult]
) -> None:
    export = ["export", "wan_t2v", "--checkpoint", str(checkpoint), "--repository", str(tmp_path / "models")]
    one = ["--component", "denoiser_high", "--engine", "denoiser_high=torch"]
    assert root.run([*export, *one, "--weights", "int8", "--compile", "--plan"]) == 0
    assert "torch:int8" in capsys.readouterr().out
    assert root.run(["plan", str(mixed[0])]) == 0
    assert "torch:fp32" in capsys.readouterr().out
    assert root.run([*export, "--engine", "torch", "--cuda-graphs"]) == 2
    said = capsys.readouterr().err
    assert "cuda-graphs must be left out where denoiser_high runs on a CPU" in said
    assert root.run([*export, "--compile"]) == 2
    assert "compile must be given with --engine torch, got default" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_server_needs_nothing_of_an_export_when_it_loads_such_a_model(
    mixed: tuple[Path, ExportResult],
) -> None:
    code = """
import sys
for name in ("onnx", "onnx_ir", "onnxscript", "onnxslim", "onnxruntime"):
    sys.modules[name] = None
from pathlib import Path
from slipway_serving.runtime.program import Settings, load_program
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2
folder = Path(sys.argv[1])
config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
parsed = json_format.MessageToDict(config, preserving_proto_field_name=True)
load_program(Settings(folder.name, folder / "1", parsed)).close()
print("loaded")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(mixed[0] / HIGH)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr
