"""Execution accelerators of a config in Slipway's backend `onnxruntime`: obeyed or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from line_graph import write_graph
from tritonclient.grpc import model_config_pb2 as pb

from slipway_serving.protocol import distribution
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime import accelerators, session

ALL = [accelerators.TENSORRT, accelerators.CUDA, accelerators.CPU]


def config_of(*entries: str, side: str = "gpu") -> dict[str, Any]:
    """Return a config in the JSON form in which Triton hands it to a Python backend."""
    text = "".join(f"{side}_execution_accelerator {{ {entry} }}" for entry in entries)
    parsed = text_format.Parse(
        f'name: "m" optimization {{ execution_accelerators {{ {text} }} }}', pb.ModelConfig()
    )
    config: dict[str, Any] = json.loads(json_format.MessageToJson(parsed, preserving_proto_field_name=True))
    return config


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Execution providers that the installed ONNX Runtime has; a test may change the list."""
    names = [*ALL]
    monkeypatch.setattr(session.ort, "get_available_providers", lambda: names)
    return names


TENSORRT = (
    'name: "tensorrt" parameters { key: "precision_mode" value: "FP16" }'
    ' parameters { key: "max_workspace_size_bytes" value: "1073741824" }'
    ' parameters { key: "trt_profile_min_shapes" value: "x:1x4" }'
)


def test_tensorrt_comes_before_cuda_with_the_options_of_onnx_runtime(available: list[str]) -> None:
    entry = 'name: "cuda" parameters { key: "use_tf32" value: "0" }'
    assert session.providers(config_of(TENSORRT, entry), "GPU", 1) == [
        (
            accelerators.TENSORRT,
            {
                "device_id": "1",
                "trt_fp16_enable": "1",
                "trt_max_workspace_size": "1073741824",
                "trt_profile_min_shapes": "x:1x4",
            },
        ),
        (accelerators.CUDA, {"device_id": "1", "use_tf32": "0"}),
        (accelerators.CPU, {}),
    ]


@pytest.mark.parametrize(
    ("entry", "side", "kind", "lacking", "said"),
    [
        ('name: "cuda"', "gpu", "CPU", "",
         "m: gpu_execution_accelerator must be absent for an instance on a CPU, got cuda; try instance_group"
         " kind KIND_GPU"),
        ('name: "openvino"', "cpu", "GPU", "", "cpu_execution_accelerator must be absent for an instance on"),
        ('name: "openvino"', "cpu", "CPU", "", "cpu_execution_accelerator must be absent here, got openvino"),
        ('name: "auto_io"', "gpu", "GPU", "", "must be cuda or tensorrt here, got auto_io"),
        (TENSORRT, "gpu", "GPU", accelerators.TENSORRT,
         "gpu_execution_accelerator must be cuda or absent with this onnxruntime (CUDAExecutionProvider,"
         " CPUExecutionProvider), got tensorrt; try pip uninstall --yes onnxruntime onnxruntime-gpu, then pip"
         ' install ".[gpu]"'),
        ('name: "cuda"', "gpu", "GPU", accelerators.CUDA, "instance_group kind must be KIND_CPU with this"),
        ('name: "tensorrt" parameters { key: "trt_magic" value: "1" }', "gpu", "GPU", "",
         "parameter trt_magic of gpu_execution_accelerator tensorrt must be one that Triton's backend reads"),
        ('name: "tensorrt" parameters { key: "precision_mode" value: "FP8" }', "gpu", "GPU", "",
         "parameter precision_mode of gpu_execution_accelerator tensorrt must be one of FP32, FP16, BF16,"),
    ],
)  # fmt: skip
def test_accelerator_is_refused_in_one_line_when_it_would_have_no_effect(
    available: list[str], entry: str, side: str, kind: str, lacking: str, said: str
) -> None:
    if lacking:
        available.remove(lacking)
    with pytest.raises(InvalidRequest) as failure:
        session.providers(config_of(entry, side=side), kind, 0)
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


def test_model_does_not_load_when_a_provider_of_it_is_not_usable(
    tmp_path: Path,
) -> None:
    """As with a build of ONNX Runtime whose libraries of TensorRT are not on the machine."""
    if accelerators.CUDA in session.ort.get_available_providers():
        pytest.skip("needs a machine whose ONNX Runtime has no CUDA provider")
    chosen = [(accelerators.TENSORRT, {}), (accelerators.CPU, {})]
    with pytest.raises(InvalidRequest, match="m: .*TensorrtExecutionProvider.* must be usable, got only CPU"):
        session.load({"name": "m"}, write_graph(tmp_path / "model.onnx").parent, chosen)


def test_config_of_a_gpu_is_completed_on_a_cpu_without_its_accelerators() -> None:
    config = config_of(TENSORRT) | {"max_batch_size": 4}
    assert accelerators.without_accelerators(config) == {
        "name": "m",
        "max_batch_size": 4,
        "optimization": {},
    }
    assert "execution_accelerators" in config["optimization"]


def test_both_builds_of_onnx_runtime_are_refused_on_a_gpu(
    available: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distribution.onnxruntime_conflict() is None
    monkeypatch.setattr(distribution, "version", lambda name: "1.31.1")
    with pytest.raises(InvalidRequest) as failure:
        session.providers({"name": "m"}, "GPU", 0)
    assert str(failure.value) == (
        "m: only one of onnxruntime and onnxruntime-gpu may be installed, since each overwrites the other's"
        " files, got onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1; try pip uninstall --yes onnxruntime"
        ' onnxruntime-gpu, then pip install ".[gpu]" in a checkout of Slipway'
    )
    # A model on a CPU runs with either.
    assert session.providers({"name": "m"}, "CPU", 0) == [(accelerators.CPU, {})]
