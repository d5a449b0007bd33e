"""ONNX Runtime sessions built from a model's config.

The parameters have the same names as in Triton's C++ backend (its README, "Model Config Options"). A value
that cannot be read is an error which names parameter, rule and value. The config chooses the device: a GPU
that ONNX Runtime cannot use is an error, never a silent run on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, raise_all
from slipway_serving.runtime.backends.onnxruntime import accelerators, int8_products
from slipway_serving.runtime.backends.onnxruntime.arena import ARENA_SHRINKAGE, SHRUNK_ARENAS

_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}
# A server has a thread pool for each graph, and by default ONNX Runtime's threads spin while they wait for
# work, which takes the cores from all other pools. Here they sleep, unless a model's config says "1": a
# request of `airimu` every 20 ms took 12 ms of a core with spinning and 10 ms without, a step of a video 75
# and 55 ms (docs/operate/overload.md).
_NO_SPINNING = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
# Older model parameters for CUDA provider options; their numbers are indices into these tuples, as in the
# C++ backend.
_CUDA_PARAMETERS: dict[str, tuple[str, ...]] = {
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "do_copy_in_default_stream": ("0", "1"),
}


class _Parameters:
    """Parameters of a config, read by type; the problems are collected and raised together."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._values = {
            key: str(value.get("string_value", "")) for key, value in config.get("parameters", {}).items()
        }
        self.problems: list[str] = []

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def starting_with(self, prefix: str) -> dict[str, str]:
        return {key: value for key, value in self._values.items() if key.startswith(prefix)}

    def integer(self, name: str, rule: str, top: int | None = None) -> int:
        """Return a whole number from 0 to `top`, or 0 if the parameter is absent."""
        text = self._values.get(name, "0").strip()
        if not (text.isascii() and text.isdigit()) or (top is not None and int(text) > top):
            self.problems.append(f"parameter {name} must be {rule}, got {text!r}")
            return 0
        return int(text)

    def boolean(self, name: str, *, default: bool) -> bool:
        text = self._values.get(name)
        if text is None:
            return default
        if text.strip().lower() not in _BOOLEANS:
            self.problems.append(f"parameter {name} must be 0, 1, false or true, got {text!r}")
        return _BOOLEANS.get(text.strip().lower(), default)


def session_options(config: Mapping[str, Any]) -> ort.SessionOptions:
    """Return the session options of a config.

    Raises:
        InvalidRequest: A parameter or the graph optimization level cannot be read; the message names all.
    """
    parameters = _Parameters(config)
    options = ort.SessionOptions()
    options.logid = str(config["name"])
    options.intra_op_num_threads = parameters.integer("intra_op_thread_count", "a whole number, 0 or more")
    options.inter_op_num_threads = parameters.integer("inter_op_thread_count", "a whole number, 0 or more")
    parallel = parameters.integer("execution_mode", "0 (sequential) or 1 (parallel)", 1)
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = parameters.boolean("enable_mem_arena", default=True)
    options.enable_mem_pattern = parameters.boolean("enable_mem_pattern", default=True)
    for key, value in (_NO_SPINNING | parameters.starting_with("session.")).items():
        options.add_session_config_entry(key, value)
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    if level not in _GRAPH_LEVELS:
        parameters.problems.append(f"optimization graph level must be -1, 0, 1 or 2, got {level}")
    raise_all(str(config["name"]), parameters.problems)
    options.graph_optimization_level = _GRAPH_LEVELS[level]
    return options


def run_options(config: Mapping[str, Any]) -> ort.RunOptions:
    """Return the options of each run, from a config."""
    parameters = _Parameters(config)
    options = ort.RunOptions()
    shrunk = SHRUNK_ARENAS if parameters.boolean("enable_mem_arena", default=True) else ""
    if ARENA_SHRINKAGE in parameters:
        shrunk = parameters[ARENA_SHRINKAGE]
    if shrunk:
        options.add_run_config_entry(ARENA_SHRINKAGE, shrunk)
    return options


def providers(config: Mapping[str, Any], kind: str, device_id: int) -> list[tuple[str, dict[str, str]]]:
    """Return the execution providers for a device, in descending priority.

    Args:
        config: Config of the model.
        kind: Kind of the model's instance, "CPU" or "GPU".
        device_id: Number of the GPU.

    Raises:
        InvalidRequest: The installed ONNX Runtime cannot use the device or an accelerator of the config.
    """
    raise_all(str(config["name"]), accelerators.device_problems(config, kind, ort.get_available_providers()))
    if kind != "GPU":
        return [(accelerators.CPU, {})]
    return accelerators.gpu_providers(config, device_id, lambda: _cuda_options(config))


def _cuda_options(config: Mapping[str, Any]) -> dict[str, str]:
    """Translate the CUDA parameters that the C++ backend reads from a model's parameters."""
    parameters = _Parameters(config)
    # Verification runs float32 graphs without TF32, whose products have 10 bits of mantissa; so do servers.
    options = {"use_tf32": "0"}
    for name, values in _CUDA_PARAMETERS.items():
        if name in parameters:
            top = len(values) - 1
            options[name] = values[parameters.integer(name, f"a whole number 0 to {top}", top)]
    if "gpu_mem_limit" in parameters:
        options["gpu_mem_limit"] = str(parameters.integer("gpu_mem_limit", "a whole number of bytes"))
    raise_all(str(config["name"]), parameters.problems)
    return options


def graph_path(config: Mapping[str, Any], version_folder: Path) -> Path:
    """Return the path of a model's graph: a file, or `model.onnx` in a folder of that name.

    Args:
        config: Config of the model; its `default_model_filename` names the graph, `model.onnx` by default.
        version_folder: Version folder of the model.
    """
    path = version_folder / Path(config.get("default_model_filename") or "model.onnx").name
    return path / "model.onnx" if path.is_dir() else path


def load(
    config: Mapping[str, Any], version_folder: Path, chosen: list[tuple[str, dict[str, str]]]
) -> ort.InferenceSession:
    """Load a model's graph.

    Args:
        config: Config of the model.
        version_folder: Version folder of the model, which contains the graph, see :func:`graph_path`.
        chosen: Execution providers, see :func:`providers`.

    Raises:
        InvalidRequest: The file is missing or ONNX Runtime cannot load it, and the message names the file; or
            this processor does not multiply the graph's INT8 weights exactly.
    """
    model = str(config["name"])
    path = graph_path(config, version_folder)
    if not path.is_file():
        raise InvalidRequest(f"{model}: model file must exist, got none at {path}")
    try:
        # ONNX Runtime would print why a provider failed, and go on with the others.
        session = ort.InferenceSession(
            str(path), session_options(config), providers=chosen, enable_fallback=False
        )
    except SlipwayError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class.
        reason = str(error).strip().splitlines()[0]
        raise InvalidRequest(
            f"{model}: model file must be a graph that ONNX Runtime {ort.__version__} loads, "
            f"got {path}: {reason}"
        ) from error
    usable = session.get_providers()
    if missing := [name for name, _ in chosen if name not in usable]:
        raise InvalidRequest(f"{model}: {', '.join(missing)} must be usable, got only {', '.join(usable)}")
    largest = session.get_modelmeta().custom_metadata_map.get(int8_products.PROPERTY)
    on_cpu = chosen[0][0] == accelerators.CPU
    if on_cpu and largest is not None and (problem := int8_products.problem(int(largest))):
        raise InvalidRequest(f"{model}: {problem}")
    _trim_memory()
    return session


def _trim_memory() -> None:
    """Return to the system the memory that a load has freed, which glibc would keep.

    A load converts the weights and changes their layout. A float16 graph of 1.4 billion parameters took
    7.3 GiB on the CPU after its load, and 5.4 GiB, the size of its float32 weights, after this call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # Only glibc has this function.
        trim(0)
