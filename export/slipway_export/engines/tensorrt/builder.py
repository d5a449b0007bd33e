"""The program that parses a graph and builds its engine: one plan, one process.

``python -m slipway_export.engines.tensorrt.builder PLAN.json REPORT.json`` reads an
:class:`~slipway_export.engines.tensorrt.plan.EnginePlan` and writes a
:class:`~slipway_export.engines.tensorrt.report.BuildReport`. It is a process of its own because the builder
prints past its logger, may end the process, and keeps memory. The engine goes to its file as a stream.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from slipway_export.engines.tensorrt.cures import cure_of
from slipway_export.engines.tensorrt.plan import EnginePlan
from slipway_export.engines.tensorrt.report import BuildReport, NodeError
from slipway_serving.runtime.tensorrt.library import load

_MEMORY = re.compile(r"Total (Activation|Weights) Memory: (\d+) bytes")
_NODE = re.compile(r"node (?:-?\d+ )?(?:\[|with name: )(?P<name>[^\]\s]*)")
_NO_DRIVER = "CUDA driver version is insufficient"
# Myelin's fused attention kernels have these names in the builder's layer information.
FUSED_ATTENTION = ("_gemm_mha", "fmha", "flash_attention", "fused_mha")


def _make_logger(trt: Any) -> Any:
    """Return a logger that keeps errors, memory and layers, and drops everything else."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []
            self.memory: dict[str, int] = {}
            self.layers: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)
            elif found := _MEMORY.search(message):
                self.memory[found[1]] = max(int(found[2]), self.memory.get(found[1], 0))
            elif "LayerType:" in message:
                self.layers += re.findall(r"Name: (\S+), LayerType:", message)

    return Logger()


def build(plan: EnginePlan) -> BuildReport:
    """Parse a graph and build its engine.

    Args:
        plan: Plan of the engine; its file is written if it names one.

    Raises:
        InvalidRequest: The library is not installed.
    """
    trt = load(plan.library)
    logger = _make_logger(trt)
    builder = trt.Builder(logger)
    # TensorRT 11 has strongly typed networks only; earlier versions take the flag.
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, logger)
    started = time.monotonic()
    parsed = parser.parse_from_file(str(plan.graph))
    parse_s = time.monotonic() - started
    if not parsed:
        errors = tuple(_parser_error(parser.get_error(i)) for i in range(parser.num_errors))
        return BuildReport(trt.__version__, parsed=False, built=False, errors=errors, parse_s=parse_s)
    inputs = {
        tensor.name: _tensor(tensor) for tensor in (network.get_input(i) for i in range(network.num_inputs))
    }
    outputs = {
        tensor.name: _tensor(tensor) for tensor in (network.get_output(i) for i in range(network.num_outputs))
    }
    config = _configure(trt, builder, plan)
    logger.errors.clear()
    started = time.monotonic()
    written = _write_engine(trt, builder, network, config, plan)
    build_s = time.monotonic() - started
    if written and plan.options.timing_cache is not None:
        plan.options.timing_cache.write_bytes(memoryview(config.get_timing_cache().serialize()))
    return BuildReport(
        version=trt.__version__,
        parsed=True,
        built=written > 0,
        errors=() if written else _builder_errors(logger.errors),
        inputs=inputs,
        outputs=outputs,
        parse_s=parse_s,
        build_s=build_s,
        engine_bytes=written,
        weights_bytes=logger.memory.get("Weights", 0),
        activation_bytes=logger.memory.get("Activation", 0),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        fused_attention=sum(any(kernel in name for kernel in FUSED_ATTENTION) for name in logger.layers),
        layers=len(logger.layers),
    )


def _configure(trt: Any, builder: Any, plan: EnginePlan) -> Any:
    """Return the builder's configuration of a plan."""
    config, options = builder.create_builder_config(), plan.options
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # The builder then prints its layers.
    config.clear_flag(trt.BuilderFlag.TF32)
    if options.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_bytes)
    if options.builder_level is not None:
        config.builder_optimization_level = options.builder_level
    if options.strip_weights:
        config.set_flag(trt.BuilderFlag.STRIP_PLAN)
        config.set_flag(trt.BuilderFlag.REFIT_IDENTICAL)
    if options.weight_streaming:
        config.set_flag(trt.BuilderFlag.WEIGHT_STREAMING)
    if options.timing_cache is not None:
        known = options.timing_cache.read_bytes() if options.timing_cache.exists() else b""
        config.set_timing_cache(config.create_timing_cache(known), False)
    if plan.targets and plan.library.targets:
        config.num_compute_capabilities = len(plan.targets)
        for index, target in enumerate(plan.targets):
            config.set_compute_capability(getattr(trt.ComputeCapability, target.upper()), index)
    for profile in plan.profiles:
        made = builder.create_optimization_profile()
        for name, shapes in profile.shapes.items():
            made.set_shape(name, *shapes)
        config.add_optimization_profile(made)
    return config


def _write_engine(trt: Any, builder: Any, network: Any, config: Any, plan: EnginePlan) -> int:
    """Build the engine into its file; return its size in bytes, 0 if the builder made none."""

    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self, file: BinaryIO | None) -> None:
            trt.IStreamWriter.__init__(self)
            self.file, self.written = file, 0

        def write(self, data: Any) -> int:
            size = len(data)
            if self.file is not None:
                self.file.write(data)
            self.written += size
            return size

    if plan.engine is None:
        writer = Writer(None)
        done = builder.build_serialized_network_to_stream(network, config, writer)
    else:
        with plan.engine.open("wb") as file:
            writer = Writer(file)
            done = builder.build_serialized_network_to_stream(network, config, writer)
        if not done:
            plan.engine.unlink()
    return writer.written if done else 0


def _tensor(tensor: Any) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype.name, tuple(tensor.shape)


def _parser_error(error: Any) -> NodeError:
    message = _first_line(error.desc())
    if message == "false":  # The parser says no more about an operator that it does not know.
        message = "the parser does not support this operator"
    return NodeError(
        error.node_name() or "",
        error.node_operator() or "",
        message,
        cure_of(f"{error.node_operator()} {message}"),
    )


def _builder_errors(messages: Sequence[str]) -> tuple[NodeError, ...]:
    """Return the builder's errors; that of a missing driver follows others, and counts only by itself."""
    told = [message for message in dict.fromkeys(messages) if _NO_DRIVER not in message]
    return tuple(_builder_error(message) for message in told or list(dict.fromkeys(messages)))


def _builder_error(message: str) -> NodeError:
    found = _NODE.search(message)
    text = _first_line(message)
    return NodeError(found["name"] if found else "", "", text, cure_of(message))


def _first_line(message: str) -> str:
    return (message.strip() or "no message").splitlines()[0][:400]


def main(arguments: list[str]) -> None:
    """Build the engine of a plan file and write the report file."""
    plan, report = arguments
    built = build(EnginePlan.from_json(json.loads(Path(plan).read_text(encoding="utf-8"))))
    Path(report).write_text(json.dumps(built.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
