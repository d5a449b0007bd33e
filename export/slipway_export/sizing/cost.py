"""Count of a component's work from its description, without reading weights or computing values.

The network is built with its weights left on disk and run once for each point on torch's fake tensors, which
have shapes and no content. Torch's own counter adds up matrix products, convolutions and attention. Of
identical layers, only one is run. The work and the speed of a machine (`machine.py`) give the time of a
verification or a step; `estimate.py` derives from it the resources of an export.
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

from slipway_export.spec import Component, Loading, Precision
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import raise_all

if TYPE_CHECKING:
    from slipway_export.sizing.machine import Speed

Shape = Sequence[int]

_RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")
# Costs of one floating-point operation, one written byte and one operator call, as multiples of an operation
# in the machine's calibration. They were fitted to random Wan denoisers of 0.7, 25, 118 and 538 million
# parameters at 16 to 2,700 tokens, on two idle cores.
_PYTORCH = 1.05, 58.0, 1.5e6
_ONNXRUNTIME = 0.75, 31.0, 1.1e5
# ONNX Runtime's arena of activations grows by doubling, so it may be twice as large as the activations.
ARENA = 2.0


@dataclass(frozen=True)
class Work:
    """Work of one forward of a network.

    Args:
        operations: Floating-point operations of matrix products, convolutions, attention and recurrent
            layers; a multiply-add counts as two.
        calls: Number of calls of torch operators.
        bytes: Peak memory in addition to the weights, in PyTorch and float32, in bytes.
        written: Size of all results together, in bytes; most results are computed elementwise.
        scores: Number of scores of its largest attention: batch x heads x queries x keys.
    """

    operations: float
    calls: int
    bytes: int
    written: int
    scores: int = 0


def counted(component: Component, points: Sequence[Point]) -> list[Work]:
    """Count the work of a component's forward at points.

    Args:
        component: Component whose network is built once, in float32, without reading its weights.
        points: Points at which the work is counted, sizes by axis.

    Raises:
        InvalidRequest: An output of the network has another shape than the description says.
    """
    return works(component, component.load(Precision.FP32, Loading.ON_DISK), points)


def works(component: Component, module: torch.nn.Module, points: Sequence[Point]) -> list[Work]:
    """Count the work of a component's forward at points, with a network that is already built.

    Args:
        component: Description of the component.
        module: Network of the component, in float32; its weights are not read.
        points: Points at which the work is counted, sizes by axis.
    """
    # The fake mode converts real weights when an operator uses them.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    return [_counted(component, module, fake, point) for point in points]


def seconds(work: Work, speed: Speed) -> float:
    """Estimate the seconds to run a network once in PyTorch and once in ONNX Runtime.

    Args:
        work: Work of one forward.
        speed: Speed of both programs on the device that runs them.
    """
    return _weighed(work, _PYTORCH) / speed.pytorch + served_seconds(work, speed)


def served_seconds(work: Work, speed: Speed) -> float:
    """Estimate the seconds to run a network once in ONNX Runtime."""
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
        outputs = module(*inputs)
    _check_shapes(component, outputs, point)
    return tally.work


def _check_shapes(component: Component, outputs: torch.Tensor | Sequence[torch.Tensor], point: Point) -> None:
    """Refuse a network whose outputs have other shapes than its description says."""
    given = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    sizes = ", ".join(f"{axis}={size}" for axis, size in point.items())
    raise_all(
        component.label,
        [
            f"{tensor.name} of the checkpoint's network must have the shape {list(tensor.at(point))}"
            f" at {sizes}, got {list(output.shape)}; this kind of network is not supported"
            for tensor, output in zip(component.outputs, given, strict=False)
            if tuple(output.shape) != tensor.at(point)
        ],
    )


class _Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that counts operator calls, products, and the peak memory of the code inside it.

    Attributes:
        products: Torch's counter of products, which the caller enters together with this mode.
        recurrence: Counter of recurrent layers, which the caller enters as well.
        skipped: Work of layers that were not run because an identical layer was.
        live: Bytes of the tensors that are alive now.
        peak: Highest value of `live` so far.
        scores: Number of scores of the largest attention so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = FlopCounterMode(display=False, custom_mapping=_ATTENTION)
        self.recurrence = _Recurrence()
        self.skipped = Work(0.0, 0, 0, 0)
        self.live = self.peak = self.scores = 0
        self._calls = self._written = 0

    @property
    def work(self) -> Work:
        """Work that was run or skipped so far."""
        counted = self.products.get_total_flops() + self.recurrence.operations
        return Work(
            counted + self.skipped.operations,
            self._calls + self.skipped.calls,
            self.peak,
            self._written + self.skipped.written,
            self.scores,
        )

    def skip(self, work: Work) -> None:
        """Add the work of a layer that is not run."""
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
        self.scores = max(self.scores, _scores(func, args))
        inputs = {id(each.untyped_storage()) for each in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in inputs:
                self._hold(storage)
                # A view writes nothing. Its storage is new here if it is the first view of a real weight.
                self._written += 0 if func.is_view else tensor.nbytes
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size


def _scores(func: Any, args: Sequence[Any]) -> int:
    """Return the number of scores of an operator that is an attention or its softmax; 0 for any other."""
    if func.overloadpacket in _ATTENTION:
        query, key = args[0], args[1]
        return int(math.prod(query.shape[:-1])) * int(key.shape[-2])
    return int(args[0].numel()) if func is torch.ops.aten._softmax.default else 0


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


@contextmanager
def _one_of_each(module: torch.nn.Module, tally: _Tally) -> Iterator[None]:
    """Run only one of identical layers in a module list, and count its work for the others."""
    known: dict[Any, tuple[Work, Any]] = {}
    layers = [
        layer
        for parent in module.modules()
        if isinstance(parent, torch.nn.ModuleList)
        for layer in parent
        if "forward" not in vars(layer)
    ]
    for layer in layers:
        layer.forward = _cached_forward(layer, known, tally)
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _cached_forward(
    layer: torch.nn.Module, known: dict[Any, tuple[Work, Any]], tally: _Tally
) -> Callable[..., Any]:
    """Return a layer's forward that reuses the work of equal layers that were already counted."""
    original = layer.forward
    kind = (type(layer), repr(layer), tuple((k, v.shape, v.dtype) for k, v in layer.state_dict().items()))

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        # A layer may leave results for another in a list or an object, so such a call is always run.
        if not all(
            leaf is None or isinstance(leaf, torch.Tensor | int | float | str) for leaf in leaves
        ) or any(isinstance(each, list | dict) for each in (*args, *kwargs.values())):
            return original(*args, **kwargs)
        call = (kind, str(tree), tuple(_key(leaf) for leaf in leaves))
        if call in known:
            work, result = known[call]
            tally.skip(work)
            return tree_map_only(_Like, _Like.empty, result)
        before, live, peak = tally.work, tally.live, tally.peak
        tally.peak = live
        result = original(*args, **kwargs)
        after, peak_bytes = tally.work, tally.peak - live
        tally.peak = max(peak, tally.peak)
        work = Work(
            after.operations - before.operations,
            after.calls - before.calls,
            peak_bytes,
            after.written - before.written,
        )
        known[call] = work, tree_map_only(torch.Tensor, _Like, result)
        return result

    return forward


def _key(leaf: Any) -> Any:
    return (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


class _Like:
    """Shape, strides and dtype of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype

    def empty(self) -> torch.Tensor:
        """Return an uninitialized tensor with this shape, strides and dtype."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    count: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return count


# Torch's counter covers only the attention operators of GPUs.
_ATTENTION: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention
}


class _Recurrence(TorchFunctionMode):
    """Function mode that counts recurrent layers whole, which torch would otherwise split into time steps.

    Attributes:
        operations: Floating-point operations of the layers so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # A call for packed sequences has its batch sizes as second argument; only padded calls are counted.
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
        """Return empty tensors in the form of torch's functions: the outputs, then the final states."""
        states = (state,) if isinstance(state, torch.Tensor) else tuple(state)
        places = math.prod(signal.shape[:2])
        self.operations += 2 * places * sum(math.prod(each.shape) for each in weights if each.ndim == 2)
        outputs = signal.new_empty(*signal.shape[:2], states[0].shape[-1] * (1 + bidirectional))
        return outputs, *(torch.empty_like(each) for each in states)


_LAYERS: Iterable[Any] = tuple(getattr(torch, name) for name in _RECURRENT)
