"""Estimate of what an export needs before it starts: bytes on disk, in memory and on the device, and time.

A component's network is built without reading its weights (`Loading.ON_DISK`), so
that a checkpoint of any size is planned without its weights. The estimate for the export, its verification
and the served graph follows from the sizes of the tensors in each precision, the work of a forward
(`cost.py`) and the constants below. `docs/operate/sizing.md` states how accurate the estimates are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import nn

from slipway_export.graph.onnx import EXTERNAL_DATA_BYTES
from slipway_export.graph.quantize import BLOCK, LARGE_TABLE
from slipway_export.sizing.cost import ARENA, Work, seconds, served_seconds, works
from slipway_export.sizing.machine import Speed, measured_call, measured_speed
from slipway_export.spec import DEFAULT_BUDGET, Component, Loading, Precision

# Measured on random denoisers of 25, 118 and 538 million parameters (dimension 384, 768 and 1280; 10, 12 and
# 20 layers) on two cores: resident memory, and time while nothing else ran.
PROCESS_BYTES = 0.62e9
"""Resident memory of a process that exports, before it has a network, in bytes."""
_TRACED_BYTES_PER_CALL = 21e3
_GRAPH_BYTES_PER_CALL = 420
# A graph in one file is assembled in memory before it is written; otherwise each tensor is written by itself.
_WHOLE_FILE = 2.1
_ONE_TENSOR = 3.0
# Times as multiples of `machine.measured_call`, which was 0.2 ms on the same machine: for the import of the
# tracing libraries, for each operator that is traced, optimized and written, for each operator that is run,
# and for each GB of float32 that is written, loaded, or read by PyTorch during a run.
_STARTING = 62_000
_TRACED = 34.0
_RUN = 1.0
_WRITTEN_PER_GB = 12_500
_LOADED_PER_GB = 4_000
_READ_PER_GB = 2_500
# Most memory that ONNX Runtime 1.31 uses for a weight on the CPU, as a multiple of the weight's bytes.
# Measured on chains of 40 products of 2560 x 2560. It widens float16 at load and packs integers into a second
# copy. A bfloat16 graph is verified as a widened copy.
# FP8 counts as INT8.
_MEMORY_FACTORS = {
    Precision.FP16: 3.0,
    Precision.BF16: 2.1,
    Precision.INT8: 2.0,
    Precision.FP8: 2.0,
    Precision.INT4: 2.0,
}
_FLOAT32_MEMORY_FACTOR = 1.05
# Memory of a Python process with ONNX Runtime in Triton.
_SERVER_BYTES = 0.15e9
GPU_BYTES = 0.6e9
"""Device memory that a GPU's runtime itself uses, in bytes."""
# Bytes of an int8 column's scale and zero point; bytes of an int4 weight with its share of a scale.
_INT8_COLUMN_BYTES, _INT4_BYTES = 5, 0.5 + 4 / BLOCK
_TABLE_BYTES = 2
_HALVES = (Precision.FP16, Precision.BF16)


@dataclass(frozen=True)
class Machine:
    """Speed of a machine.

    Args:
        speed: Speed of the arithmetic.
        call_s: Time of a call (:func:`slipway_export.sizing.machine.measured_call`), in seconds.
    """

    speed: Speed
    call_s: float


def this_machine() -> Machine:
    """Measure the speed of this machine, which takes a second or two."""
    return Machine(measured_speed(), measured_call())


@dataclass(frozen=True)
class ResourceEstimate:
    """Estimated resources of one component in one precision.

    Args:
        label: Label of the component.
        precision: Precision of its graph.
        parameters: Number of parameters of its network.
        disk_bytes: Size of the graph and its weights; weights that graphs of one component share count once.
        export_bytes: Resident memory of the export without verification.
        verify_bytes: Resident memory of verification on the CPU, at the largest point within the default
            budget.
        serve_bytes: Resident memory of the graph served on the CPU, at opt.
        device_bytes: Memory on a GPU that serves the graph, at opt.
        export_s: Time of the export without verification, on the machine of the plan.
        verify_s: Time of its verification there at all points.
        step_s: Time of one forward at opt there, served on the CPU.
        operations: Number of operations of that forward.
        served: Description of how it is served, if not by a graph of that precision.
        model: Name of the placed model; empty in a plan, which places nothing.
        build_bytes: Memory of the process that builds its TensorRT engine; 0 without one.
    """

    label: str
    precision: Precision
    parameters: int
    disk_bytes: float
    export_bytes: float
    verify_bytes: float
    serve_bytes: float
    device_bytes: float
    export_s: float
    verify_s: float
    step_s: float
    operations: float
    served: str = ""
    model: str = ""
    build_bytes: float = 0.0


def estimate_component(
    component: Component, machine: Machine, precisions: Sequence[Precision] | None = None
) -> list[ResourceEstimate]:
    """Estimate the resources of a component in each of its precisions.

    Args:
        component: Description of the component.
        machine: Machine that exports, verifies and serves it.
        precisions: Precisions to compute; all that the component has when None.
    """
    computed = list(component.tolerance) if precisions is None else list(precisions)
    network = component.load(Precision.FP32, Loading.ON_DISK)
    points = component.points()
    work = dict(zip(points, works(component, network, list(points.values())), strict=True))
    loaded = {Precision.FP32: network}
    loaded_in = {each: _loaded_in(component, each) for each in computed}
    for precision in set(loaded_in.values()) - loaded.keys():
        loaded[precision] = component.load(precision, Loading.ON_DISK)
    return [_estimate_precision(component, loaded[loaded_in[each]], each, work, machine) for each in computed]


def _loaded_in(component: Component, precision: Precision) -> Precision:
    """Return the precision of the network that has the same weights as a graph."""
    # Networks in either half precision keep the same weights in float32.
    found = component.loaded_in(precision)
    return Precision.FP16 if found is Precision.BF16 else found


def _estimate_precision(
    component: Component, network: nn.Module, precision: Precision, work: dict[str, Work], machine: Machine
) -> ResourceEstimate:
    """Estimate the resources of a component in one precision from its counted work."""
    weights = list(_weights(component, network, precision))
    stored = sum(size for size, _ in weights)
    memory = sum(size * factor for size, factor in weights)
    sizes = [each.numel() for each in network.parameters()]
    largest = 4 * largest_weight(network)
    calls, gigabytes = work["opt"].calls, 4 * sum(sizes) / 1e9
    process = PROCESS_BYTES + _TRACED_BYTES_PER_CALL * calls
    writing = _writing(stored, largest)
    times = {name: verified_s(each, gigabytes, machine) for name, each in work.items()}
    verified = max((work[name].bytes for name, time in times.items() if time <= DEFAULT_BUDGET), default=0)
    return ResourceEstimate(
        label=component.label,
        precision=precision,
        parameters=sum(sizes),
        disk_bytes=stored + _GRAPH_BYTES_PER_CALL * calls,
        export_bytes=process + writing,
        verify_bytes=process + max(writing, memory + ARENA * verified, largest + verified),
        serve_bytes=_SERVER_BYTES + memory + ARENA * work["opt"].bytes,
        device_bytes=GPU_BYTES + stored + work["opt"].bytes / (2 if precision in _HALVES else 1),
        export_s=machine.call_s * (_STARTING + _TRACED * calls + _WRITTEN_PER_GB * gigabytes),
        verify_s=sum(times.values()) + machine.call_s * _LOADED_PER_GB * gigabytes,
        step_s=served_seconds(work["opt"], machine.speed),
        operations=work["opt"].operations,
    )


def weights_bytes(component: Component, network: nn.Module, precision: Precision) -> tuple[float, float]:
    """Return the bytes of a component's weights: on disk, and in memory during the export.

    Activations and operators take additional space, which :func:`estimate_component` includes.

    Args:
        component: Description of the component.
        network: Network in the precision that the component is loaded in; it may be without weights.
        precision: Precision of the graph.
    """
    weights = list(_weights(component, network, precision))
    stored, memory = sum(size for size, _ in weights), sum(size * factor for size, factor in weights)
    largest = 4 * largest_weight(network)
    return stored, PROCESS_BYTES + max(_writing(stored, largest), memory)


def _writing(stored: float, largest: float) -> float:
    return _WHOLE_FILE * stored if stored <= EXTERNAL_DATA_BYTES else _ONE_TENSOR * largest


def largest_weight(network: nn.Module) -> int:
    """Return the number of elements of the largest weight that is read whole; tables are read by rows."""
    tables = {id(part.weight) for part in network.modules() if isinstance(part, nn.Embedding)}
    return max((each.numel() for each in network.parameters() if id(each) not in tables), default=0)


def verified_s(work: Work, gigabytes: float, machine: Machine) -> float:
    """Estimate the verification at one point, in seconds.

    It consists of PyTorch's run, which reads the weights, and ONNX Runtime's.
    """
    besides = _RUN * work.calls + _READ_PER_GB * gigabytes
    return seconds(work, machine.speed) + machine.call_s * besides


def estimate_from_size(label: str, precision: Precision, disk_bytes: int) -> ResourceEstimate:
    """Estimate the resources of a placed graph from its size alone; times and activations are unknown.

    Args:
        label: Label of its component.
        precision: Precision of the graph.
        disk_bytes: Size of its files, in bytes.
    """
    memory = disk_bytes * _MEMORY_FACTORS.get(precision, _FLOAT32_MEMORY_FACTOR)
    return ResourceEstimate(
        label, precision, 0, disk_bytes, 0.0, 0.0, _SERVER_BYTES + memory, GPU_BYTES + disk_bytes,
        0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip


def _weights(component: Component, network: nn.Module, precision: Precision) -> Iterator[tuple[float, float]]:
    """Yield each weight's bytes in the graph, and the factor by which the CPU's memory for it is larger.

    Args:
        component: Description of the component.
        network: Network in the precision that the component is loaded in.
        precision: Precision of the graph.
    """
    quantized = set()
    if precision.is_quantized:
        products = {
            id(part.weight): part.weight
            for path, part in network.named_modules()
            if isinstance(part, nn.Linear) and not component.keeps_float(path)
        }
        quantized = set(products)
        for weight in products.values():
            bytes_of_8_bits = weight.numel() + _INT8_COLUMN_BYTES * weight.shape[0]
            size = _INT4_BYTES * weight.numel() if precision is Precision.INT4 else bytes_of_8_bits
            yield size, _MEMORY_FACTORS[precision]
        for path, part in network.named_modules():
            if _is_table(part) and not component.keeps_float(path) and id(part.weight) not in quantized:
                quantized.add(id(part.weight))
                yield _TABLE_BYTES * part.weight.numel(), 1.0
    for weight in network.parameters():
        if id(weight) not in quantized:
            narrow = weight.dtype in (torch.float16, torch.bfloat16)
            yield weight.nbytes, _MEMORY_FACTORS[precision] if narrow else _FLOAT32_MEMORY_FACTOR


def _is_table(part: nn.Module) -> TypeGuard[nn.Embedding]:
    """Return whether an integer precision stores a module's rows in float16."""
    return isinstance(part, nn.Embedding) and part.weight.numel() >= LARGE_TABLE
