"""Component: one network with one signature, exported to one graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from slipway_export.spec.formats import LOWEST_OPSET, Engine, Precision
from slipway_export.spec.loading import Loading
from slipway_export.spec.tensors import BATCH, Axis, TensorSpec, Tolerance
from slipway_serving.protocol.axis_expressions import Point, Size
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import torch


# Blocks of a DequantizeLinear's scales, and its bfloat16 scales, are new in opset 21.
_QDQ_OPSET = 21


def _as_it_is(_: torch.nn.Module) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Component:
    """One network with one signature, exported to one graph.

    Args:
        name: Name of the served model without the family's prefix, e.g. ``denoiser_high``.
        inputs: Input tensors, in the order of the forward's arguments.
        outputs: Output tensors, in the order of the forward's results.
        axes: All axes that the shapes name.
        load: Function that builds the network in a precision, in eval mode. The network's forward takes and
            returns the tensors as described (float32 at the edges, whatever the precision inside). Tracing
            asks it to leave the weights on disk (:class:`Loading`), so it must not compute anything from
            them before the forward.
        tolerance: Bounds per precision. In a precision that is missing, the graph stays in float32 and its
            manifest says so.
        keep_float: Patterns of module paths (``*.proj_out``) whose products quantized precisions leave alone.
        outliers: Patterns of module paths whose products have inputs with outliers. Quantized precisions do
            not quantize these inputs. For ONNX Runtime, int8 stores the weights with 8 bits in blocks. Engine
            ``portable``, which has no operator for that, leaves the products alone.
        lower: Context manager in which the network is traced for ONNX Runtime. It replaces operations that
            torch would decompose by ONNX Runtime's operators, and restores them afterwards.
        restate: Context manager in which the network is traced for the other engines. It replaces operations
            by equal ones of better standard operators, and restores them afterwards.
        merge_us: Longest time that Triton may delay a request to merge it with others of its shape into one
            batch, in microseconds; None never merges requests. A merged request is rounded differently, so
            set this only for components whose results need not be identical to the bit.
        merge_rows: Largest number of rows in a batch of merged requests; None allows as many as the batch
            axis. A single request may have more.
        queue_limit: Largest number of requests that may wait for the model; further ones are refused. None
            sets no limit.
        queue_limit_with: Names of other models whose waiting requests count too.
        rows: Fewest and most rows that the surrounding models send in one request; None if none sends any. An
            export that places these models must allow both.
        cached: True if Triton answers a repeated request from its response cache. The component must have a
            single output, because the cache key does not include which outputs a request asks for.
        graph: File stem of the graph. ``model`` makes a Triton model of its own; any other stem is a graph
            that an authored model of that name runs.
        lowest_opset: Lowest ONNX operator set that the graph can be written in, by precision.
        portable: Component that engine ``portable`` exports in place of this one, if upstream's own file has
            another signature. No served model may depend on the difference.
        tensorrt_excludes: Reason by precision that TensorRT must not compute the network in. Other engines
            offer these precisions.
        quantized_from: Precision of the network that quantized graphs are made from. :meth:`for_engine` sets
            it.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    axes: tuple[Axis, ...]
    load: Callable[[Precision, Loading], torch.nn.Module]
    tolerance: Mapping[Precision, Tolerance]
    keep_float: tuple[str, ...] = ()
    outliers: tuple[str, ...] = ()
    lower: Callable[[torch.nn.Module], AbstractContextManager[None]] = _as_it_is
    restate: Callable[[torch.nn.Module], AbstractContextManager[None]] = _as_it_is
    merge_us: int | None = None
    merge_rows: int | None = None
    queue_limit: int | None = None
    queue_limit_with: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None
    cached: bool = False
    graph: str = "model"
    lowest_opset: Mapping[Precision, int] = field(default_factory=lambda: dict(LOWEST_OPSET))
    portable: Component | None = None
    tensorrt_excludes: Mapping[Precision, str] = field(default_factory=dict)
    quantized_from: Precision = Precision.FP32

    def __post_init__(self) -> None:
        if self.cached and len(self.outputs) != 1:
            raise InvalidRequest(
                f"{self.label}: a component that is cached must have one output, got {len(self.outputs)}"
            )
        known = {axis.name for axis in self.axes}
        for tensor in (*self.inputs, *self.outputs):
            for size in tensor.sizes:
                if isinstance(size, Size) and (unknown := size.axes - known):
                    raise InvalidRequest(
                        f"{self.label}: {tensor.name} must use axes of the component"
                        f" ({', '.join(sorted(known))}), got {', '.join(sorted(unknown))}"
                    )
            for name, point in self.points().items():
                if any(size < 1 for size in tensor.at(point)):
                    sizes = ", ".join(f"{axis}={size}" for axis, size in point.items())
                    raise InvalidRequest(
                        f"{self.label}: {tensor.name} must have sizes of at least 1 in the range of its axes,"
                        f" got {list(tensor.at(point))} at {name} ({sizes})"
                    )

    @property
    def label(self) -> str:
        """Name of the graph in reports: ``denoiser_high`` or ``vae_decoder/next``."""
        return self.name if self.graph == "model" else f"{self.name}/{self.graph}"

    @property
    def rows_axis(self) -> Axis | None:
        """The axis that every tensor begins with, if there is one. Its size is the row count of a request."""
        if all(tensor.batched for tensor in (*self.inputs, *self.outputs)):
            return next(axis for axis in self.axes if axis.name == BATCH)
        return None

    @property
    def batch_axis(self) -> Axis | None:
        """The axis that Triton batches over: the axis of the rows, if its size varies.

        Triton's backends batch only graphs whose first dimension is dynamic. If the axis has a single size,
        the model is served without batching and its dimensions include the rows, so requests have the same
        shapes.
        """
        axis = self.rows_axis
        return None if axis is None or axis.min == axis.max else axis

    def keeps_float(self, path: str) -> bool:
        """Return whether `keep_float` names a module's path, or that of a module that contains it."""
        names = path.split(".")
        paths = [".".join(names[: i + 1]) for i in range(len(names))]
        return any(fnmatchcase(each, pattern) for each in paths for pattern in self.keep_float)

    def varying(self, tensor: TensorSpec) -> tuple[Size | int, ...]:
        """Return a tensor's dimensions as the graph has them, with the size of each fixed axis filled in."""
        fixed = {axis.name: axis.opt for axis in self.axes if axis.min == axis.max}
        return tuple(size.substitute(fixed) if isinstance(size, Size) else size for size in tensor.sizes)

    def precision(self, requested: Precision) -> Precision:
        """Return the precision that the graph gets when the user requests this one."""
        return requested if requested in self.tolerance else Precision.FP32

    def loaded_in(self, precision: Precision) -> Precision:
        """Return the precision in which the network is loaded to make its graph in a precision."""
        return self.quantized_from if precision.is_quantized else precision

    def for_engine(self, engine: Engine) -> Component:
        """Return the component that takes this one's place for an engine, with the precisions that it has."""
        if engine.is_tensorrt:
            return self._for_tensorrt()
        chosen = self.for_portable() if engine is Engine.PORTABLE else self
        return chosen._without((Precision.FP8,))

    def _for_tensorrt(self) -> Component:
        """Return the component without excluded precisions, quantized from a half precision where it has one.

        TensorRT has a fused attention kernel in half precision only, so the operators around the quantized
        products are in half precision.
        """
        chosen = self._without(self.tensorrt_excludes)
        halves = (each for each in (Precision.FP16, Precision.BF16) if each in chosen.tolerance)
        base = next(halves, Precision.FP32)
        opset = max(_QDQ_OPSET, self.lowest_opset.get(base, 0))
        quantized = {each: opset for each in chosen.tolerance if each.is_quantized}
        return replace(chosen, quantized_from=base, lowest_opset={**self.lowest_opset, **quantized})

    def _without(self, precisions: Collection[Precision]) -> Component:
        """Return the component without the bounds of some precisions, and hence without the precisions."""
        if not any(precision in self.tolerance for precision in precisions):
            return self
        able = {each: bound for each, bound in self.tolerance.items() if each not in precisions}
        return replace(self, tolerance=able)

    def for_portable(self) -> Component:
        """Return the component that takes this one's place for engine ``portable``.

        It lacks the quantized precisions if inputs with outliers would leave every product in float32.
        """
        chosen = self.portable or self
        if "*" not in chosen.outliers:
            return chosen
        return chosen._without([precision for precision in chosen.tolerance if precision.is_quantized])

    def points(self) -> dict[str, Point]:
        """Return the points at which the graph is verified, by name.

        ``opt`` is the point that the export traces. ``unseen`` is none of the other three.
        """
        return {
            "min": {axis.name: axis.min for axis in self.axes},
            "opt": {axis.name: axis.opt for axis in self.axes},
            "max": {axis.name: axis.max for axis in self.axes},
            "unseen": {axis.name: axis.unseen(low=i % 2 == 0) for i, axis in enumerate(self.axes)},
        }
