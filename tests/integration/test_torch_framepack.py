"""FramePack's transformer by the program that PyTorch serves with: at its real size on a GPU, tiny here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import json_format

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.engines.torch_network import network_of
from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.graph.onnx import example_inputs
from slipway_export.repository.config import model_config
from slipway_export.spec import Component, Engine, Precision
from slipway_serving.runtime.in_process import InProcessModels
from slipway_serving.runtime.program import Call, Settings
from slipway_serving.runtime.torch_engine.network import Network
from slipway_serving.runtime.torch_engine.options import TorchOptions, Weights
from slipway_serving.runtime.torch_engine.program import TorchModel

pytestmark = pytest.mark.long

# A section has 33 frames and, as FramePack is used, 25 steps.
FRAMES, STEPS = 33, 25
CONFIG = "transformer/config.json"
Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Stepped:
    """A step of denoising: what the program answered, and how long it took."""

    sample: np.ndarray[Any, Any]
    step_s: float


def component_of(preset: str, folder: Path) -> Component:
    """Return the transformer of a preset's configuration, without a weight on the disk."""
    chosen = FAMILY.presets[preset]
    path = folder / CONFIG
    path.parent.mkdir(parents=True)
    config = {"_class_name": "HunyuanVideoFramepackTransformer3DModel", **chosen.configs[CONFIG]}
    path.write_text(json.dumps(config))
    (found,) = FAMILY.plan(Checkpoint(folder, preset), chosen.axes).components
    return found


def load(file: Path, precision: str) -> Network:
    """Load the network that a test named: random weights, made where they run."""
    from diffusers import HunyuanVideoFramepackTransformer3DModel

    from slipway_export.families.framepack_i2v.network import Transformer

    preset = file.parents[1].name
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    torch.manual_seed(0)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            made = HunyuanVideoFramepackTransformer3DModel(**FAMILY.presets[preset].configs[CONFIG])
            network = Transformer(made).eval()
    finally:
        torch.set_default_dtype(usual)
    component = component_of(preset, file.parent / "described")
    return network_of(replace(component, load=lambda *_: network), Precision(precision))


def stepped(preset: str, options: TorchOptions, folder: Path, kind: str, repeats: int) -> Stepped:
    """Run one step of denoising at the sizes that the preset's graphs are traced at, as a server would."""
    component = component_of(preset, folder / "component")
    config = json_format.MessageToDict(
        model_config(component, preset, Engine.TORCH), preserving_proto_field_name=True
    )
    parameters = {**options.parameters(), "network": f"{__name__}:load"}
    config["parameters"] = {name: {"string_value": value} for name, value in parameters.items()}
    settings = Settings(preset, folder / preset / "1", {"max_batch_size": 0, **config}, kind)
    program = TorchModel(settings)
    try:
        call = Call(example_inputs(component, component.points()["opt"]), InProcessModels(folder))
        times = []
        for _ in range(repeats + 1):  # the first makes workspaces
            started = time.perf_counter()
            (answer,) = program.run(call)
            times.append(time.perf_counter() - started)
        return Stepped(answer["sample"], min(times[1:]))
    finally:
        program.close()


def apart(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def test_step_runs_as_the_gpus_does_when_the_transformer_is_tiny(tmp_path: Path) -> None:
    found = stepped("tiny", TorchOptions("bf16"), tmp_path, "CPU", 1)
    assert found.sample.shape == (1, 16, 9, 4, 4)
    assert np.isfinite(found.sample).all()
    assert found.sample.std() > 0.01


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, Stepped]]:
    """What each way of running has answered."""
    found: dict[str, Stepped] = {}
    yield found
    found.clear()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [
        TorchOptions("bf16"),
        TorchOptions("bf16", compile="default"),
        TorchOptions("bf16", Weights.FP8),
    ],
    ids=lambda options: options.summary,
)
def test_step_of_the_real_size_is_timed_when_there_is_a_gpu(
    options: TorchOptions, answers: dict[str, Stepped], tmp_path: Path
) -> None:
    if options.weights is Weights.FP8 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU does not multiply float8")
    found = stepped("public", options, tmp_path, "GPU", 3)
    torch.cuda.empty_cache()
    first = answers.setdefault("first", found)
    print(
        f"{options.summary}: {found.step_s:.2f} s a step, {STEPS * found.step_s / FRAMES:.2f} s a frame at"
        f" {STEPS} steps of {FRAMES} frames, relative L2 {apart(found.sample, first.sample):.1e} to the first"
    )
    assert np.isfinite(found.sample).all()
    assert apart(found.sample, first.sample) < 0.2
