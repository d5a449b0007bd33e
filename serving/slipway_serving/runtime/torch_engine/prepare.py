"""Preparation of a loaded network by its options: attention, weights, device, compiler, CUDA graphs.

The order matters: weights are quantized on the way to their device, the hooks that move layers then wrap the
quantized layers, and the compiler sees the result of both.
"""

from __future__ import annotations

import locale
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.torch_engine.attention import set_attention
from slipway_serving.runtime.torch_engine.cuda_graphs import CudaGraphs
from slipway_serving.runtime.torch_engine.network import Network
from slipway_serving.runtime.torch_engine.options import GRAPHED_MODES, Offload, TorchOptions, Weights
from slipway_serving.runtime.torch_engine.quantize import quantize

Forward = Callable[..., tuple[Tensor, ...]]
# Ada is the first generation of GPUs that multiplies float8.
_FP8_CAPABILITY = (8, 9)


def check_device(options: TorchOptions, device: torch.device, where: str) -> None:
    """Refuse a device that is missing or does not support the options.

    Raises:
        InvalidRequest: There is no GPU, or the GPU does not support the format of the weights.
    """
    if device.type != "cuda":
        return
    if not torch.cuda.is_available():
        raise InvalidRequest(
            f"{where}: instance_group kind must be KIND_CPU where torch {torch.__version__} sees no GPU, got"
            " KIND_GPU; try a build of torch for CUDA"
        )
    capability = torch.cuda.get_device_capability(device)
    if options.weights is Weights.FP8 and capability < _FP8_CAPABILITY:
        raise InvalidRequest(
            f"{where}: weights fp8 must run on a GPU of compute capability 8.9 or above, got"
            f" {capability[0]}.{capability[1]}; try --weights int8"
        )


def prepare(network: Network, options: TorchOptions, device: torch.device, where: str) -> Forward:
    """Return a network's forward function on a device, with outputs on the CPU.

    Args:
        network: Loaded network; it is changed in place.
        options: Options of the component.
        device: Device that runs the network.
        where: Name of the network, for messages.

    Returns:
        Function that takes the tensors of the signature on the CPU and returns the outputs there.

    Raises:
        InvalidRequest: The device does not support the options, or a backend or a library is missing.
    """
    run = prepare_on_device(network, options, device, where)
    return lambda *tensors: tuple(output.cpu() for output in run(*tensors))


def prepare_on_device(network: Network, options: TorchOptions, device: torch.device, where: str) -> Forward:
    """Return a network's forward function on a device, with outputs on that device.

    Args:
        network: Loaded network; it is changed in place.
        options: Options of the component.
        device: Device that runs the network.
        where: Name of the network, for messages.

    Returns:
        Function that takes the tensors of the signature on any device and returns the outputs on `device`.

    Raises:
        InvalidRequest: See :func:`prepare`.
    """
    check_device(options, device, where)
    module = network.module.eval().requires_grad_(False)
    if options.attention is not None:
        set_attention(module, options.attention, where)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if options.weights is not None and options.weights.is_quantized:
        # An offloaded network is quantized on the CPU, since the GPU may have no room for all of its layers.
        quantization_device = device if options.offload is Offload.NONE else torch.device("cpu")
        quantize(module, options.weights, network.products, quantization_device)
    after_run = _move_to_device(module, options.offload, device)
    forward: Callable[..., Any] = module
    if options.compile is not None:
        forward = _compile(module, options.compile)
    run = _tuple_of(forward)
    if options.cuda_graphs:
        run = CudaGraphs(run)
    replayed = options.compile in GRAPHED_MODES

    def run_on_device(*tensors: Tensor) -> tuple[Tensor, ...]:
        try:
            with torch.no_grad():
                outputs = run(*(tensor.to(device) for tensor in tensors))
            # CUDA graphs of such a mode overwrite the outputs of the previous run, so outputs are cloned.
            return tuple(output.clone() for output in outputs) if replayed else outputs
        finally:
            after_run()

    return run_on_device


def _tuple_of(forward: Callable[..., Any]) -> Forward:
    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = forward(*tensors)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return run


def _compile(module: nn.Module, mode: str) -> Callable[..., Any]:
    """Compile a network with `torch.compile` so that it works within Triton's stub."""
    import torch._inductor.config

    if locale.getencoding().lower() not in ("utf-8", "utf8"):
        # The compiler reads its own sources in the locale's encoding, and Triton's stub has the C locale.
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    # More threads would start a pool of processes with this process's executable, which is Triton's stub.
    torch._inductor.config.compile_threads = 1
    # Sizes are symbolic from the first run on, so that only a size of 1 causes another compilation.
    compiled: Callable[..., Any] = torch.compile(
        module, mode=None if mode == "default" else mode, dynamic=True
    )
    return compiled


def _move_to_device(module: nn.Module, offload: Offload, device: torch.device) -> Callable[[], None]:
    """Move a network to its device or install the hooks that do; return a function to call after each run."""
    if offload is Offload.MODEL:
        from accelerate import cpu_offload_with_hook

        _, hook = cpu_offload_with_hook(module, device)
        return hook.offload  # type: ignore[no-any-return]
    if offload is Offload.LAYERS:
        from diffusers.hooks import apply_group_offloading

        streams = device.type == "cuda"  # The next layer is copied while this one computes.
        apply_group_offloading(module, device, offload_type="leaf_level", use_stream=streams)
    else:
        module.to(device)
    return lambda: None
