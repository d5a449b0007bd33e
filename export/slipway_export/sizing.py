"""What machine an export needs: bytes on disk, in memory and on the device, and time; before it is begun.

A component's network is built as its configuration describes it (`weights.from_configurations`), so that a
checkpoint of any size is planned without its weights. From the sizes of its tensors in each precision and the
work of a forward (`cost.py`) follows what the export, its verification and the served graph take, by the few
constants below; `docs/sizing.md` says how far they are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import nn

from slipway_export.cost import ARENA, Work, seconds, served_seconds, works
from slipway_export.machine import Speed, measured_call, measured_speed
from slipway_export.onnx import EXTERNAL_DATA_BYTES
from slipway_export.quantize import BLOCK, LARGE_TABLE
from slipway_export.spec import DEFAULT_BUDGET, Component, Precision
from slipway_export.weights import from_configurations

# Measured on random denoisers of 25, 118 and 538 million parameters (dimension 384, 768 and 1280; 10, 12 and
# 20 layers) on two cores: resident memory, and time while nothing else ran.
PROCESS_BYTES = 0.62e9
"""Of a process that exports, before it has a network."""
_TRACED_BYTES_PER_CALL = 21e3
_GRAPH_BYTES_PER_CALL = 420
# A graph in one file is put together in memory before it is written; otherwise each tensor by itself.
_WHOLE_FILE = 2.1
_ONE_TENSOR = 3.0
# Times as a multiple of `machine.measured_call`, which was 0.2 ms there: to import what
# traces, for each operator that is traced, optimized and written, and for each GB of float32 that is written,
# loaded, or read by PyTorch as it runs.
_STARTING = 62_000
_TRACED = 34.0
_RUN = 1.0
_WRITTEN_PER_GB = 12_500
_LOADED_PER_GB = 4_000
_READ_PER_GB = 2_500
# Of a weight's bytes, what ONNX Runtime 1.31's CPU holds at most: chains of 40 products of 2560 x 2560.
# Float16 is widened at load; integers are packed into a second copy. A bfloat16 graph is verified widened.
_HELD = {Precision.FP16: 3.0, Precision.BF16: 2.1, Precision.INT8: 2.0, Precision.INT4: 2.0}
_HELD_FLOAT32 = 1.05
# A process of Python with ONNX Runtime in Triton.
_SERVER_BYTES = 0.15e9
GPU_BYTES = 0.6e9
"""What a GPU's runtime takes for itself."""
# Of an int8 matrix's column its scale and zero point; of an int4 weight itself and its share of a scale.
_INT8_COLUMN_BYTES, _INT4_BYTES = 5, 0.5 + 4 / BLOCK
_TABLE_BYTES = 2
_HALVES = (Precision.FP16, Precision.BF16)


@dataclass(frozen=True)
class Machine:
    """How fast a machine is.

    Args:
        speed: of the arithmetic.
        call_s: :func:`slipway_export.machine.measured_call`.
    """

    speed: Speed
    call_s: float


def this_machine() -> Machine:
    """Measure this machine, in a second or two."""
    return Machine(measured_speed(), measured_call())


@dataclass(frozen=True)
class Need:
    """What one component takes in one precision.

    Args:
        label: of the component.
        precision: of its graph.
        parameters: of its network.
        disk_bytes: of the graph and its weights; graphs of one component have common weights once.
        export_bytes: resident while it is exported without verification.
        verify_bytes: resident while it is verified on the CPU, at the largest point that the default
            budget holds.
        serve_bytes: resident while it is served on the CPU, at opt.
        device_bytes: on a GPU that serves it, at opt.
        export_s: of the export without verification, on the machine of the plan.
        verify_s: of its verification there at all points.
        step_s: of one forward at opt there, served on the CPU.
        operations: of that forward.
        served: how it is served, where not by a graph of that precision.
        model: Name of the placed model; empty in a plan, which places nothing.
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


def needs(
    component: Component, machine: Machine, precisions: Sequence[Precision] | None = None
) -> list[Need]:
    """Say what a component takes in each of its precisions.

    Args:
        component: the description.
        machine: that exports, verifies and serves it.
        precisions: those wanted; all that the component has when None.
    """
    wanted = list(component.tolerance) if precisions is None else list(precisions)
    with from_configurations():
        network = component.load(Precision.FP32)
        points = component.points()
        work = dict(zip(points, works(component, network, list(points.values())), strict=True))
        loaded = {Precision.FP32: network}
        for precision in {_loaded_in(each) for each in wanted} - loaded.keys():
            loaded[precision] = component.load(precision)
        return [_need(component, loaded[_loaded_in(each)], each, work, machine) for each in wanted]


def _loaded_in(precision: Precision) -> Precision:
    """Return the precision of the network whose weights are those of a graph."""
    if precision is Precision.BF16:
        return Precision.FP16  # Both halves keep the same weights in float32.
    return Precision.FP32 if precision.is_integer else precision


def _need(
    component: Component, network: nn.Module, precision: Precision, work: dict[str, Work], machine: Machine
) -> Need:
    weights = list(_weights(component, network, precision))
    stored = sum(size for size, _ in weights)
    held = sum(size * factor for size, factor in weights)
    sizes = [each.numel() for each in network.parameters()]
    largest = 4 * largest_weight(network)
    calls, gigabytes = work["opt"].calls, 4 * sum(sizes) / 1e9
    process = PROCESS_BYTES + _TRACED_BYTES_PER_CALL * calls
    writing = _writing(stored, largest)
    times = {name: verified_s(each, gigabytes, machine) for name, each in work.items()}
    verified = max((work[name].bytes for name, time in times.items() if time <= DEFAULT_BUDGET), default=0)
    return Need(
        label=component.label,
        precision=precision,
        parameters=sum(sizes),
        disk_bytes=stored + _GRAPH_BYTES_PER_CALL * calls,
        export_bytes=process + writing,
        verify_bytes=process + max(writing, held + ARENA * verified, largest + verified),
        serve_bytes=_SERVER_BYTES + held + ARENA * work["opt"].bytes,
        device_bytes=GPU_BYTES + stored + work["opt"].bytes / (2 if precision in _HALVES else 1),
        export_s=machine.call_s * (_STARTING + _TRACED * calls + _WRITTEN_PER_GB * gigabytes),
        verify_s=sum(times.values()) + machine.call_s * _LOADED_PER_GB * gigabytes,
        step_s=served_seconds(work["opt"], machine.speed),
        operations=work["opt"].operations,
    )


def weights_need(component: Component, network: nn.Module, precision: Precision) -> tuple[float, float]:
    """Return what a component's weights take: on disk, and in memory while its graph is made and verified.

    It is known without a forward, which :func:`needs` counts: what activations and operators take comes on
    top.

    Args:
        component: the description.
        network: in the graph's precision, or in float32 for an integer one; it may be without weights.
        precision: of the graph.
    """
    weights = list(_weights(component, network, precision))
    stored, held = sum(size for size, _ in weights), sum(size * factor for size, factor in weights)
    largest = 4 * largest_weight(network)
    return stored, PROCESS_BYTES + max(_writing(stored, largest), held)


def _writing(stored: float, largest: float) -> float:
    return _WHOLE_FILE * stored if stored <= EXTERNAL_DATA_BYTES else _ONE_TENSOR * largest


def largest_weight(network: nn.Module) -> int:
    """Return the elements of the largest weight that is held whole; of a table only rows are."""
    tables = {id(part.weight) for part in network.modules() if isinstance(part, nn.Embedding)}
    return max((each.numel() for each in network.parameters() if id(each) not in tables), default=0)


def verified_s(work: Work, gigabytes: float, machine: Machine) -> float:
    """Estimate the verification at one point: PyTorch's run, which reads the weights, and ONNX Runtime's."""
    besides = _RUN * work.calls + _READ_PER_GB * gigabytes
    return seconds(work, machine.speed) + machine.call_s * besides


def need_of_file(label: str, precision: Precision, disk_bytes: int) -> Need:
    """Say what follows from a placed graph's size alone: nothing of its work.

    Args:
        label: of its component.
        precision: of the graph.
        disk_bytes: of its files.
    """
    held = disk_bytes * _HELD.get(precision, _HELD_FLOAT32)
    return Need(
        label, precision, 0, disk_bytes, 0.0, 0.0, _SERVER_BYTES + held, GPU_BYTES + disk_bytes,
        0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip


def _weights(component: Component, network: nn.Module, precision: Precision) -> Iterator[tuple[float, float]]:
    """Give each weight's bytes in the graph, and by how much what the CPU holds of it is more.

    Args:
        component: the description.
        network: in the graph's precision, or in float32 for an integer one.
        precision: of the graph.
    """
    quantized = set()
    if precision.is_integer:
        products = {
            id(part.weight): part.weight
            for path, part in network.named_modules()
            if isinstance(part, nn.Linear) and not component.keeps_float(path)
        }
        quantized = set(products)
        for weight in products.values():
            integers = weight.numel() + _INT8_COLUMN_BYTES * weight.shape[0]
            size = integers if precision is Precision.INT8 else _INT4_BYTES * weight.numel()
            yield size, _HELD[precision]
        for path, part in network.named_modules():
            if _is_table(part) and not component.keeps_float(path) and id(part.weight) not in quantized:
                quantized.add(id(part.weight))
                yield _TABLE_BYTES * part.weight.numel(), 1.0
    for weight in network.parameters():
        if id(weight) not in quantized:
            narrow = weight.dtype in (torch.float16, torch.bfloat16)
            yield weight.nbytes, _HELD[precision] if narrow else _HELD_FLOAT32


def _is_table(part: nn.Module) -> TypeGuard[nn.Embedding]:
    """Whether an integer precision stores a module's rows in float16."""
    return isinstance(part, nn.Embedding) and part.weight.numel() >= LARGE_TABLE
