"""Execution accelerators in `config.pbtxt`, by which ONNX Runtime runs a model's graph on a GPU.

Triton's C++ backend `onnxruntime` reads them (`ModelState::LoadModel` of its onnxruntime.cc), and so does
Slipway's backend of that name. The provider for TensorRT gets the ranges of the component's axes as one
optimization profile, and a cache for the engines that it builds when the model is loaded.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.engines.providers import Provider
from slipway_export.graph.dialect import unknown_operators
from slipway_export.repository.config import config_text
from slipway_export.spec import Component, Engine, Precision
from slipway_serving.protocol.axis_expressions import Size
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.backends.onnxruntime.accelerators import ENGINE_CACHE

_PRECISION_MODES = {Precision.FP32: "FP32", Precision.FP16: "FP16", Precision.BF16: "BF16"}
_PROFILE_POINTS = ("min", "opt", "max")


def accelerator(
    component: Component, provider: Provider, precision: Precision, cache_prefix: str
) -> pb.ModelOptimizationPolicy.ExecutionAccelerators.Accelerator:
    """Return the entry of a component's configuration for a provider.

    Args:
        component: Description of the component.
        provider: Execution provider.
        precision: Precision of the component's graph.
        cache_prefix: Prefix of the files of cached engines, see :func:`cache_prefix`.
    """
    parameters: dict[str, str] = {}
    if provider is Provider.TENSORRT:
        parameters = {
            "precision_mode": _PRECISION_MODES[precision],
            **_profile(component),
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": ENGINE_CACHE,
            "trt_engine_cache_prefix": cache_prefix,
        }
    return pb.ModelOptimizationPolicy.ExecutionAccelerators.Accelerator(
        name=provider.value, parameters=parameters
    )


def check_profile(component: Component, graph: Path) -> None:
    """Refuse a graph of varying sizes of which TensorRT would take only parts.

    ONNX Runtime then wants a profile for the inputs of every part, and does not load the model without them.

    Args:
        component: Description of the component.
        graph: Path of the graph.

    Raises:
        InvalidRequest: The graph has operators that TensorRT's parser does not know.
    """
    if _profile(component) and (unknown := unknown_operators(graph, Engine.TENSORRT)):
        raise InvalidRequest(
            f"provider of {component.name} must be {Provider.CUDA.value} for a graph of varying sizes with"
            f" operators that TensorRT does not know ({', '.join(sorted(unknown))}), got"
            f" {Provider.TENSORRT.value}; try --provider {component.name}={Provider.CUDA.value}, or"
            " --fixed-shapes"
        )


def _profile(component: Component) -> dict[str, str]:
    """Return the shapes of the inputs whose sizes vary, at the ends and at the opt of every axis."""
    varying = [
        tensor
        for tensor in component.inputs
        if any(isinstance(size, Size) for size in component.varying(tensor))
    ]
    if not varying:
        return {}
    points = component.points()
    return {
        f"trt_profile_{name}_shapes": ",".join(
            f"{tensor.name}:{'x'.join(map(str, tensor.at(points[name])))}" for tensor in varying
        )
        for name in _PROFILE_POINTS
    }


def cache_prefix(model: str, digest: str) -> str:
    """Return the prefix of a model's cached engines, which differs for other weights.

    ONNX Runtime names a cached engine by the file name, the tensor names and the versions, but not by the
    weights: without a prefix, two denoisers of one structure would share one engine.

    Args:
        model: Name of the served model.
        digest: Digest of the graph's files, hexadecimal.
    """
    return f"{model}_{digest[:16]}"


def set_accelerator(
    config: Path, entry: pb.ModelOptimizationPolicy.ExecutionAccelerators.Accelerator
) -> None:
    """Write an accelerator for GPUs into a model's `config.pbtxt`."""
    parsed = text_format.Parse(config.read_text(encoding="utf-8"), pb.ModelConfig())
    parsed.optimization.execution_accelerators.gpu_execution_accelerator.append(entry)
    config.write_text(config_text(parsed), encoding="utf-8")
