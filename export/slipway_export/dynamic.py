"""A component's axes as the dynamic dimensions of a trace.

`torch.export` knows dimensions that are affine in one axis, whether or not an input carries that axis
alone. Any other (a product of axes, a sum of several) is a dimension of its own to it; where inputs carry
its axes, the network sees it as computed from them (:func:`related`), so that the trace knows that
``2 * window * height * width`` places are so many frames. The graph's inputs and outputs are named as the
description says (:func:`name_dimensions`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway_export.spec import Component
from slipway_serving.errors import InvalidRequest
from slipway_serving.size import Point, Size

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch


def traced_point(component: Component) -> Point:
    """Return the opt point, larger where a varying size is 1, which torch.export would freeze.

    Raises:
        InvalidRequest: a varying size of an input is 1 at every point.
    """
    point = dict(component.points()["opt"])
    for tensor in component.inputs:
        for size, left in zip(tensor.sizes, component.varying(tensor), strict=True):
            if not isinstance(left, Size):
                continue
            for axis in component.axes:
                while axis.name in left.axes and left.at(point) < 2 and point[axis.name] < axis.max:
                    point[axis.name] += 1
            if left.at(point) < 2:
                raise InvalidRequest(
                    f"{component.label}: {tensor.name} must have a dimension {size} that reaches 2 within its"
                    f" axes, got at most {left.at(point)}; try a fixed size"
                )
    return point


def dynamic_shapes(component: Component, module: torch.nn.Module) -> dict[str, Any]:
    """Return the dynamic dimensions of each argument of the forward; a ``*args`` takes a tuple of them."""
    from torch.export import Dim

    varying = [axis for axis in component.axes if axis.min != axis.max]
    dims = {axis.name: Dim(axis.name, min=axis.min, max=axis.max) for axis in varying}
    composed: dict[Size, Any] = {}

    def dimension(size: Size) -> Any:
        if (affine := _carrier(size)) is not None:
            axis, factor, offset = affine
            # An operation that changes nothing is one that torch refuses.
            scaled = factor * dims[axis] if factor != 1 else dims[axis]
            return scaled + offset if offset else scaled
        points = component.points()
        low, high = size.bounds(points["min"], points["max"])
        # No axis begins with an underscore.
        return composed.setdefault(size, Dim(f"_composed_{len(composed)}", min=max(low, 1), max=high))

    shapes = (
        {i: dimension(left) for i, left in enumerate(component.varying(t)) if isinstance(left, Size)}
        for t in component.inputs
    )
    return dict(inspect.signature(module.forward).bind(*shapes).arguments)


@contextmanager
def related(component: Component, module: torch.nn.Module) -> Iterator[None]:
    """Trace a network with its composed dimensions computed from the axes that other dimensions carry.

    An input keeps its values and its shape; only the trace learns where the shape comes from. A dimension
    with an axis that no input carries stays one of its own.
    """
    reshapes = _reshapes(component)
    if not reshapes:
        yield
        return
    own = module.forward

    @functools.wraps(own)
    def forward(*inputs: torch.Tensor) -> Any:
        known = {axis: place.size_of(inputs) for axis, place in _carried(component).items()}
        seen = list(inputs)
        for i, sizes in reshapes.items():
            shape = [
                left.at(known) if isinstance(left, Size) and _carrier(left) is None else size
                for left, size in zip(sizes, inputs[i].shape, strict=True)
            ]
            seen[i] = inputs[i].reshape(shape)
        return own(*seen)

    module.forward = forward
    try:
        yield
    finally:
        del module.forward


def name_dimensions(component: Component, model: ir.Model) -> None:
    """Give the dimensions of a graph's inputs and outputs the names of the description."""
    import onnx_ir as ir

    tensors = {tensor.name: tensor for tensor in (*component.inputs, *component.outputs)}
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is None or value.name not in tensors:
            continue
        sizes = tensors[value.name].sizes
        if len(value.shape) == len(sizes):
            value.shape = ir.Shape(
                str(size) if isinstance(size, Size) and not isinstance(seen, int) else seen
                for size, seen in zip(sizes, value.shape, strict=True)
            )


@dataclass(frozen=True)
class _Place:
    """Where an input carries an axis: dimension `dim` of input `index` is ``factor * axis + offset``."""

    index: int
    dim: int
    factor: int
    offset: int

    def size_of(self, inputs: tuple[torch.Tensor, ...]) -> int:
        return (inputs[self.index].shape[self.dim] - self.offset) // self.factor


def _reshapes(component: Component) -> dict[int, tuple[Size | int, ...]]:
    """Return, by index, the inputs with composed dimensions whose axes are all carried."""
    carried = _carried(component)
    found = {}
    for i, tensor in enumerate(component.inputs):
        sizes = component.varying(tensor)
        composed = [size for size in sizes if isinstance(size, Size) and _carrier(size) is None]
        if composed and all(size.axes <= carried.keys() for size in composed):
            found[i] = sizes
    return found


def _carried(component: Component) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for i, tensor in enumerate(component.inputs):
        for dim, size in enumerate(component.varying(tensor)):
            if isinstance(size, Size) and (affine := _carrier(size)) is not None:
                axis, factor, offset = affine
                places.setdefault(axis, _Place(i, dim, factor, offset))
    return places


def _carrier(size: Size) -> tuple[str, int, int] | None:
    """Return axis, factor and offset where torch knows the dimension as one derived from the axis."""
    return size.affine if size.affine is not None and size.affine[1] > 0 else None
