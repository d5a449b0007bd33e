"""Component: one network with one signature, exported to one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from slipway_export.spec.formats import LOWEST_OPSET, Precision
from slipway_export.spec.loading import Loading
from slipway_export.spec.tensors import BATCH, Axis, TensorSpec, Tolerance
from slipway_serving.protocol.axis_expressions import Point, Size
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import torch


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
        keep_float: Patterns of module paths (``*.proj_out``) whose products integer precisions leave alone.
        outliers: Patterns of module paths whose products have inputs with outliers. Integer precisions keep
            these inputs in float32, and int8 stores the weights with 8 bits in blocks. Engine ``portable``,
            which has no operator for that, leaves the products alone.
        lower: Context manager in which the network is traced for ONNX Runtime. It replaces operations that
            torch would decompose by ONNX Runtime's operators, and restores them afterwards.
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
    merge_us: int | None = None
    merge_rows: int | None = None
    queue_limit: int | None = None
    queue_limit_with: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None
    cached: bool = False
    graph: str = "model"
    lowest_opset: Mapping[Precision, int] = field(default_factory=lambda: dict(LOWEST_OPSET))
    portable: Component | None = None

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

    def for_portable(self) -> Component:
        """Return the component that takes this one's place for engine ``portable``.

        It lacks the integer precisions if inputs with outliers would leave every product in float32.
        """
        chosen = self.portable or self
        if "*" not in chosen.outliers:
            return chosen
        able = {precision: bound for precision, bound in chosen.tolerance.items() if not precision.is_integer}
        return replace(chosen, tolerance=able)

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
