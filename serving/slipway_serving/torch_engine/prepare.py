"""Turns a loaded network into a forward as its options have it: attention, weights, place, compiler, graphs.

The order matters: weights are quantized on the way to their device, hooks that move layers go around the
layers as they then are, and the compiler sees all of it.
"""

from __future__ import annotations

import locale
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slipway_serving.errors import InvalidRequest
from slipway_serving.torch_engine.attention import set_attention
from slipway_serving.torch_engine.cuda_graphs import CudaGraphs
from slipway_serving.torch_engine.network import Network
from slipway_serving.torch_engine.options import GRAPHED_MODES, Offload, TorchOptions, Weights
from slipway_serving.torch_engine.quantize import quantize

Forward = Callable[..., tuple[Tensor, ...]]
# The first generation of GPUs that multiplies float8: Ada.
_FP8_CAPABILITY = (8, 9)


def check_device(options: TorchOptions, device: torch.device, where: str) -> None:
    """Refuse a device that is not there, or that cannot do what the options ask.

    Raises:
        InvalidRequest: says which.
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
    """Return a network's forward on a device.

    Args:
        network: as loaded; changed in place.
        options: how to run it.
        device: to run on.
        where: how messages name it.

    Returns:
        Takes the tensors of the signature, on the CPU, and gives its outputs there.

    Raises:
        InvalidRequest: the device, a backend or a library is not as it must be.
    """
    run = resident(network, options, device, where)
    return lambda *tensors: tuple(output.cpu() for output in run(*tensors))


def resident(network: Network, options: TorchOptions, device: torch.device, where: str) -> Forward:
    """Return a network's forward on a device, which leaves its outputs there.

    Args:
        network: as loaded; changed in place.
        options: how to run it.
        device: to run on.
        where: how messages name it.

    Returns:
        Takes the tensors of the signature, wherever they are, and gives its outputs on the device.

    Raises:
        InvalidRequest: as of :func:`prepare`.
    """
    check_device(options, device, where)
    module = network.module.eval().requires_grad_(False)
    if options.attention is not None:
        set_attention(module, options.attention, where)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if options.weights is not None and options.weights.is_quantized:
        # What is fetched layer by layer has no place there as a whole.
        made_on = device if options.offload is Offload.NONE else torch.device("cpu")
        quantize(module, options.weights, network.products, made_on)
    after = _placed(module, options.offload, device)
    forward: Callable[..., Any] = module
    if options.compile is not None:
        forward = _compiled(module, options.compile)
    run = _tuple_of(forward)
    if options.cuda_graphs:
        run = CudaGraphs(run)
    replayed = options.compile in GRAPHED_MODES

    def served(*tensors: Tensor) -> tuple[Tensor, ...]:
        try:
            with torch.no_grad():
                outputs = run(*(tensor.to(device) for tensor in tensors))
            # The graphs of such a mode write their outputs where those of the run before are.
            return tuple(output.clone() for output in outputs) if replayed else outputs
        finally:
            after()

    return served


def _tuple_of(forward: Callable[..., Any]) -> Forward:
    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = forward(*tensors)
        return outputs if isinstance(outputs, tuple) else (outputs,)

    return run


def _compiled(module: nn.Module, mode: str) -> Callable[..., Any]:
    import torch._inductor.config

    if locale.getencoding().lower() not in ("utf-8", "utf8"):
        # The compiler opens its own sources by the locale, which in Triton's stub is C.
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    # A pool of compilers is started by this process's executable, which in Triton is its stub.
    torch._inductor.config.compile_threads = 1
    # Sizes are symbols from the first run on: a new size is no reason to compile again, but for a size of 1.
    compiled: Callable[..., Any] = torch.compile(
        module, mode=None if mode == "default" else mode, dynamic=True
    )
    return compiled


def _placed(module: nn.Module, offload: Offload, device: torch.device) -> Callable[[], None]:
    """Put a network where it runs, or have its layers come there; return what follows each run."""
    if offload is Offload.MODEL:
        from accelerate import cpu_offload_with_hook

        _, hook = cpu_offload_with_hook(module, device)
        return hook.offload  # type: ignore[no-any-return]
    if offload is Offload.LAYERS:
        from diffusers.hooks import apply_group_offloading

        streams = device.type == "cuda"  # the next layer comes while this one computes
        apply_group_offloading(module, device, offload_type="leaf_level", use_stream=streams)
    else:
        module.to(device)
    return lambda: None
