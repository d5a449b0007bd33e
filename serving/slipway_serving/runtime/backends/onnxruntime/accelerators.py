"""Execution accelerators of a model's config, as ONNX Runtime's execution providers and their options.

A config names them in `optimization.execution_accelerators`, with the parameters that Triton's C++ backend
reads (`ModelState::LoadModel` of its onnxruntime.cc). An accelerator or a parameter that cannot take effect
is a problem, so that a model never runs otherwise than its config says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipway_serving.protocol.distribution import onnxruntime_conflict, onnxruntime_gpu_hint

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"
ENGINE_CACHE = "tensorrt_engines"
"""Folder of the engines that ONNX Runtime builds with TensorRT, in the working directory of `tritonserver`.

ONNX Runtime creates this folder, but no folder above it. `slipway serve` sets the working directory, and may
put a link to another folder in its place.
"""

_BY_NAME = {"cuda": CUDA, "tensorrt": TENSORRT}
_PRECISION_MODES = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_UNCHANGED = {
    f"trt_{name}"
    for name in (
        "max_partition_iterations",
        "min_subgraph_size",
        "dla_enable",
        "dla_core",
        "engine_cache_enable",
        "engine_cache_path",
        "engine_cache_prefix",
        "dump_subgraphs",
        "force_sequential_engine_build",
        "context_memory_sharing_enable",
        "layer_norm_fp32_fallback",
        "timing_cache_enable",
        "timing_cache_path",
        "force_timing_cache",
        "detailed_build_log",
        "build_heuristics_enable",
        "sparsity_enable",
        "builder_optimization_level",
        "auxiliary_streams",
        "tactic_sources",
        "extra_plugin_lib_paths",
        "profile_min_shapes",
        "profile_opt_shapes",
        "profile_max_shapes",
        "cuda_graph_enable",
        "dump_ep_context_model",
        "ep_context_file_path",
        "ep_context_embed_mode",
    )
}


def device_problems(config: Mapping[str, Any], kind: str, available: Sequence[str]) -> list[str]:
    """Return the problems of a config's accelerators and device with the installed ONNX Runtime.

    Args:
        config: Config of the model.
        kind: Kind of the model's instance, "CPU" or "GPU".
        available: Names of the execution providers that the installed ONNX Runtime has.
    """
    side, other = ("gpu", "cpu") if kind == "GPU" else ("cpu", "gpu")
    problems = [
        f"{other}_execution_accelerator must be absent for an instance on a {side.upper()}, got {name};"
        f" try instance_group kind KIND_{other.upper()}"
        for name in _named(config, other)
    ]
    allowed = " or ".join(_BY_NAME) if kind == "GPU" else "absent"
    problems += [
        f"{side}_execution_accelerator must be {allowed} here, got {name}"
        for name in _named(config, side)
        if kind != "GPU" or name not in _BY_NAME
    ]
    if kind != "GPU":
        return problems
    if conflict := onnxruntime_conflict():
        problems.append(conflict)
    if CUDA not in available:
        problems.append(
            f"instance_group kind must be KIND_CPU with this onnxruntime ({', '.join(available)}), got"
            f" KIND_GPU; try {onnxruntime_gpu_hint()}"
        )
    if "tensorrt" in _named(config, side) and TENSORRT not in available:
        problems.append(
            f"gpu_execution_accelerator must be cuda or absent with this onnxruntime ({', '.join(available)})"
            f", got tensorrt; try {onnxruntime_gpu_hint()}"
        )
    return [*problems, *_parameter_problems(_named(config, side).get("tensorrt", {}))]


def gpu_providers(
    config: Mapping[str, Any], device_id: int, cuda_options: Callable[[], Mapping[str, str]]
) -> list[tuple[str, dict[str, str]]]:
    """Return the execution providers of a GPU instance, in descending priority.

    Args:
        config: Config of the model, without :func:`device_problems`.
        device_id: Number of the GPU.
        cuda_options: Function that reads the options of the CUDA provider from the config's parameters.
    """
    wanted, device = _named(config, "gpu"), {"device_id": str(device_id)}
    chosen = []
    if "tensorrt" in wanted:
        chosen.append((TENSORRT, device | _tensorrt_options(wanted["tensorrt"])))
    # As in the C++ backend, CUDA computes what TensorRT does not take.
    return [*chosen, (CUDA, device | dict(cuda_options()) | wanted.get("cuda", {})), (CPU, {})]


def without_accelerators(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without accelerators, under which a CPU loads the graph to read its tensors."""
    optimization = dict(config.get("optimization", {}))
    optimization.pop("execution_accelerators", None)
    return {**config, "optimization": optimization}


def _named(config: Mapping[str, Any], side: str) -> dict[str, dict[str, str]]:
    """Return the parameters of each accelerator of one side, by the accelerator's name."""
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    entries = accelerators.get(f"{side}_execution_accelerator", [])
    return {entry["name"]: dict(entry.get("parameters", {})) for entry in entries}


def _parameter_problems(parameters: Mapping[str, str]) -> list[str]:
    problems = [
        f"parameter {name} of gpu_execution_accelerator tensorrt must be one that Triton's backend reads,"
        f" got {value!r}"
        for name, value in parameters.items()
        if name != "precision_mode" and name not in _RENAMED and name not in _UNCHANGED
    ]
    if (mode := parameters.get("precision_mode", "FP32")) not in _PRECISION_MODES:
        problems.append(
            f"parameter precision_mode of gpu_execution_accelerator tensorrt must be one of"
            f" {', '.join(_PRECISION_MODES)}, got {mode!r}"
        )
    return problems


def _tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """Translate the parameters of Triton's backend into the options of ONNX Runtime's provider."""
    options: dict[str, str] = {}
    for name, value in parameters.items():
        if name == "precision_mode":
            options |= _PRECISION_MODES[value]
        else:
            options[_RENAMED.get(name, name)] = value
    return options
