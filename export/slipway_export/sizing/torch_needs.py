"""Estimated resources of a component that PyTorch serves, with the constants of `estimate.py`.

Nothing is traced or written: the placed files are those of the checkpoint, as links if the file system has
them.
"""

from __future__ import annotations

from torch import nn

from slipway_export.checkpoint.stored_weights import stored_weights
from slipway_export.engines.choice import TorchChoice
from slipway_export.sizing.cost import ARENA, seconds, served_seconds, works
from slipway_export.sizing.estimate import (
    GPU_BYTES,
    PROCESS_BYTES,
    Machine,
    ResourceEstimate,
    largest_weight,
    verified_s,
)
from slipway_export.spec import Component, Loading, Precision
from slipway_serving.runtime.torch_engine.options import Offload, Weights

# Resident memory of a stub with torch and its libraries but no network, measured with a wake word's head.
_SERVER_BYTES = 0.45e9
# Bytes of a quantized weight. torch has no 4-bit kernels on a CPU, and keeps such weights in 8 bits.
_BYTES = {Weights.FP8: 1.0, Weights.INT8: 1.0, Weights.INT4: 0.5}


def estimate_torch(component: Component, choice: TorchChoice, machine: Machine) -> ResourceEstimate:
    """Estimate the resources of a component that PyTorch serves.

    Args:
        component: Description of the component.
        choice: Choice of how PyTorch serves it.
        machine: Machine that verifies and serves it.
    """
    options = choice.options
    whole = component.load(Precision.FP32, Loading.ON_DISK)
    points = component.points()
    work = dict(zip(points, works(component, whole, list(points.values())), strict=True))
    network = component.load(Precision(options.load_precision), Loading.ON_DISK)
    parameters = sum(weight.numel() for weight in network.parameters())
    loaded = sum(weight.nbytes for weight in network.parameters())
    memory = loaded - _saved(component, network, choice)
    files = {(tensor.file, tensor.key): tensor.disk_bytes for tensor in stored_weights(network).values()}
    times = {name: verified_s(each, 4 * parameters / 1e9, machine) for name, each in work.items()}
    opt = work["opt"]
    on_cpu = memory + ARENA * opt.bytes
    if choice.on_gpu:
        on_cpu = 0.0 if options.offload is Offload.NONE else memory
    narrow = 2 if options.load_precision in (Precision.FP16, Precision.BF16) else 1
    return ResourceEstimate(
        label=component.label,
        precision=component.precision(Precision(options.load_precision)),
        parameters=parameters,
        disk_bytes=sum(files.values()) or loaded,
        export_bytes=PROCESS_BYTES + loaded,
        verify_bytes=PROCESS_BYTES + loaded + 4 * largest_weight(whole) + ARENA * work["max"].bytes,
        serve_bytes=_SERVER_BYTES + on_cpu,
        device_bytes=GPU_BYTES + memory + opt.bytes / narrow,
        export_s=0.0,
        verify_s=sum(times.values()),
        step_s=seconds(opt, machine.speed) - served_seconds(opt, machine.speed),
        operations=opt.operations,
        # The tables have room for a single word only.
        served=f"torch:{options.weights or options.precision}",
    )


def _saved(component: Component, network: nn.Module, choice: TorchChoice) -> float:
    """Return the number of bytes by which quantized products are smaller than loaded ones."""
    weights = choice.options.weights
    if weights is None or not weights.is_quantized:
        return 0.0
    each = 1.0 if weights is Weights.INT4 and not choice.on_gpu else _BYTES[weights]
    return sum(
        part.weight.nbytes - each * part.weight.numel()
        for path, part in network.named_modules()
        if isinstance(part, nn.Linear) and not component.keeps_float(path)
    )
