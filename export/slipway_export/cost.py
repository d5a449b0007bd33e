"""The work of a component, counted from its description: no weight is read and nothing computed.

The network is built with its weights left on disk and run once for each point on torch's fake tensors, which
have shapes and no content; torch's own counter adds up the products of matrices, the convolutions and the
attention. Of layers that are alike one is run. With the speed of a machine (`machine.py`) the work is the
time of a verification or of a step; `sizing.py` makes of it what an export takes.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from slipway_export.spec import Component, Precision
from slipway_export.weights import left_on_disk
from slipway_serving.size import Point

if TYPE_CHECKING:
    from slipway_export.machine import Speed

Shape = Sequence[int]

_RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")
# What an operation of products, a written byte and a call of an operator take, as multiples of an operation
# of the machine's calibration. Fitted to random Wan denoisers of 0.7, 25, 118 and 538 million parameters at
# 16 to 2,700 tokens, on two idle cores.
_PYTORCH = 1.05, 58.0, 1.5e6
_ONNXRUNTIME = 0.75, 31.0, 1.1e5
# ONNX Runtime's arena of activations grows by doubling.
ARENA = 2.0


@dataclass(frozen=True)
class Work:
    """What one forward of a network is.

    Args:
        operations: of floating point, of products of matrices, convolutions, attention and recurrent layers;
            a multiply-add is two.
        calls: of torch's operators.
        bytes: of what it holds at once beside its weights, in PyTorch and float32.
        written: bytes of all results together, of which most are made element by element.
    """

    operations: float
    calls: int
    bytes: int
    written: int


def counted(component: Component, points: Sequence[Point]) -> list[Work]:
    """Count the work of a component's forward at points.

    Args:
        component: whose network is built once, in float32, without its weights being read.
        points: sizes of its axes.
    """
    with left_on_disk():
        module = component.load(Precision.FP32)
    return works(component, module, points)


def works(component: Component, module: torch.nn.Module, points: Sequence[Point]) -> list[Work]:
    """Count the work of a component's forward at points.

    Args:
        component: the description.
        module: its network, in float32; its weights are not read.
        points: sizes of its axes.
    """
    # Weights become fake as they are met.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    return [_counted(component, module, fake, point) for point in points]


def seconds(work: Work, speed: Speed) -> float:
    """Estimate how long it takes to run a network once in PyTorch and once in ONNX Runtime.

    Args:
        work: of one forward.
        speed: of both on the device that runs them.
    """
    return _weighed(work, _PYTORCH) / speed.pytorch + served_seconds(work, speed)


def served_seconds(work: Work, speed: Speed) -> float:
    """Estimate how long it takes to run a network once in ONNX Runtime."""
    return _weighed(work, _ONNXRUNTIME) / speed.onnxruntime


def _weighed(work: Work, weights: tuple[float, float, float]) -> float:
    per_operation, per_byte, per_call = weights
    return per_operation * work.operations + per_byte * work.written + per_call * work.calls


def _counted(component: Component, module: torch.nn.Module, fake: FakeTensorMode, point: Point) -> Work:
    tally = _Tally()
    with fake, torch.no_grad(), tally.products, tally.recurrence, tally, _one_of_each(module, tally):
        inputs = [
            torch.empty(tensor.at(point), dtype=getattr(torch, tensor.dtype.value))
            for tensor in component.inputs
        ]
        module(*inputs)
    return tally.work


class _Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what is run inside it: operators, products, and the memory of what lives at once.

    Attributes:
        products: torch's counter, to be entered with it.
        recurrence: of recurrent layers, likewise.
        skipped: of layers that another stood for.
        live: bytes that are held now.
        peak: the most that were held.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = FlopCounterMode(display=False, custom_mapping=_ATTENTION)
        self.recurrence = _Recurrence()
        self.skipped = Work(0.0, 0, 0, 0)
        self.live = self.peak = 0
        self._calls = self._written = 0

    @property
    def work(self) -> Work:
        """What was run and skipped so far."""
        counted = self.products.get_total_flops() + self.recurrence.operations
        return Work(
            counted + self.skipped.operations,
            self._calls + self.skipped.calls,
            self.peak,
            self._written + self.skipped.written,
        )

    def skip(self, work: Work) -> None:
        """Count work that is not run."""
        self.skipped = Work(
            self.skipped.operations + work.operations,
            self.skipped.calls + work.calls,
            work.bytes,
            self.skipped.written + work.written,
        )
        self.peak = max(self.peak, self.live + work.bytes)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._calls += 1
        given = {id(each.untyped_storage()) for each in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in given:
                self._hold(storage)
                # A weight becomes fake in a view of it.
                self._written += 0 if func.is_view else tensor.nbytes
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


@contextmanager
def _one_of_each(module: torch.nn.Module, tally: _Tally) -> Iterator[None]:
    """Run one of the layers of a list that are alike, and have it stand for the others."""
    known: dict[Any, tuple[Work, Any]] = {}
    layers = [
        layer
        for parent in module.modules()
        if isinstance(parent, torch.nn.ModuleList)
        for layer in parent
        if "forward" not in vars(layer)
    ]
    for layer in layers:
        layer.forward = _standing(layer, known, tally)
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _standing(
    layer: torch.nn.Module, known: dict[Any, tuple[Work, Any]], tally: _Tally
) -> Callable[..., Any]:
    own = layer.forward
    kind = (type(layer), repr(layer), tuple((k, v.shape, v.dtype) for k, v in layer.state_dict().items()))

    @wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        # A list or an object may be where a layer leaves something for another.
        if not all(
            leaf is None or isinstance(leaf, torch.Tensor | int | float | str) for leaf in leaves
        ) or any(isinstance(each, list | dict) for each in (*args, *kwargs.values())):
            return own(*args, **kwargs)
        met = (kind, str(tree), tuple(_key(leaf) for leaf in leaves))
        if met in known:
            work, result = known[met]
            tally.skip(work)
            return tree_map_only(_Like, _Like.empty, result)
        before, live, peak = tally.work, tally.live, tally.peak
        tally.peak = live
        result = own(*args, **kwargs)
        after, held = tally.work, tally.peak - live
        tally.peak = max(peak, tally.peak)
        work = Work(
            after.operations - before.operations,
            after.calls - before.calls,
            held,
            after.written - before.written,
        )
        known[met] = work, tree_map_only(torch.Tensor, _Like, result)
        return result

    return forward


def _key(leaf: Any) -> Any:
    return (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


class _Like:
    """The shape, strides and type of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype

    def empty(self) -> torch.Tensor:
        """Return another tensor like it."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


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
        self.operations += 2 * places * sum(math.prod(each.shape) for each in weights if each.ndim == 2)
        outputs = signal.new_empty(*signal.shape[:2], states[0].shape[-1] * (1 + bidirectional))
        return outputs, *(torch.empty_like(each) for each in states)


_LAYERS: Iterable[Any] = tuple(getattr(torch, name) for name in _RECURRENT)
