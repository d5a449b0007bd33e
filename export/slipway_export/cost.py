"""The arithmetic of a component, counted from its description: no weight is read and nothing computed.

The network is built with its weights left on disk and run once for each point on torch's fake tensors, which
have shapes and no content; torch's own counter adds up the products of matrices, the convolutions and the
attention. With the speed of a machine (`machine.py`) that is the time of a verification or of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from slipway_export.size import Point
from slipway_export.spec import Component, Precision
from slipway_export.weights import left_on_disk

if TYPE_CHECKING:
    from slipway_export.machine import Speed

Shape = Sequence[int]

_RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")


def operations(component: Component, points: Sequence[Point]) -> list[float]:
    """Count the floating-point operations of a component's forward.

    Products of matrices, convolutions, attention and recurrent layers count, a multiply and an add as two;
    what is done element by element does not.

    Args:
        component: whose network is built once, in float32, without its weights being read.
        points: sizes of its axes.

    Returns:
        The operations of one forward at each point.
    """
    with left_on_disk():
        module = component.load(Precision.FP32)
    # Weights become fake as they are met.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    return [_counted(component, module, fake, point) for point in points]


def seconds(operations: float, speed: Speed) -> float:
    """Estimate how long it takes to run a network once in PyTorch and once in ONNX Runtime.

    Args:
        operations: of one forward.
        speed: of both on the device that runs them.
    """
    return operations / speed.pytorch + operations / speed.onnxruntime


def _counted(component: Component, module: torch.nn.Module, fake: FakeTensorMode, point: Point) -> float:
    products = FlopCounterMode(display=False, custom_mapping=_ATTENTION)
    with fake, torch.no_grad(), products, _Recurrence() as recurrence:
        inputs = [
            torch.empty(tensor.at(point), dtype=getattr(torch, tensor.dtype.value))
            for tensor in component.inputs
        ]
        module(*inputs)
    return float(products.get_total_flops() + recurrence.operations)


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    count: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return count


# torch's counter knows the attention of GPUs only.
_ATTENTION: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention
}


class _Recurrence(TorchFunctionMode):
    """Answers recurrent layers at once, which torch would take apart step by step, and counts them.

    Attributes:
        operations: of the layers so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # The call for packed sequences has the sizes of its batches in the second place.
        padded = func in _LAYERS and isinstance(args[2], list | tuple)
        return self._layers(*args) if padded else func(*args, **(kwargs or {}))

    def _layers(
        self,
        signal: torch.Tensor,
        state: torch.Tensor | Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        biased: bool,
        layers: int,
        dropout: float,
        training: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:
        """Return empty tensors as torch's functions return theirs: outputs, and the states after."""
        states = (state,) if isinstance(state, torch.Tensor) else tuple(state)
        places = math.prod(signal.shape[:2])
        self.operations += 2 * places * sum(_elements(weight) for weight in weights if weight.ndim == 2)
        outputs = signal.new_empty(*signal.shape[:2], states[0].shape[-1] * (1 + bidirectional))
        return outputs, *(torch.empty_like(each) for each in states)


def _elements(tensor: torch.Tensor) -> int:
    return math.prod(tensor.shape)


_LAYERS: Iterable[Any] = tuple(getattr(torch, name) for name in _RECURRENT)
