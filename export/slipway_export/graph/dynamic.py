"""Mapping from a component's axes to the dynamic dimensions of a trace.

`torch.export` supports dimensions that are affine in one axis, whether or not an input carries that axis
alone. It treats any other dimension (a product of axes, a sum of several) as independent. If inputs carry
the axes of such a dimension, :func:`related` computes the dimension from them, so that the trace knows how
``2 * window * height * width`` positions relate to frames. :func:`name_dimensions` names the dimensions of
the graph's inputs and outputs as in the description.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway_export.spec import Component
from slipway_serving.protocol.axis_expressions import Point, Size
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch


def traced_point(component: Component) -> Point:
    """Return the opt point, enlarged where a varying size is 1, because torch.export would fix such a size.

    Raises:
        InvalidRequest: A varying size of an input is 1 at every point.
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
    """Return the dynamic dimensions of each argument of the forward, as a tuple for ``*args``."""
    from torch.export import Dim

    varying = [axis for axis in component.axes if axis.min != axis.max]
    dims = {axis.name: Dim(axis.name, min=axis.min, max=axis.max) for axis in varying}
    composed: dict[Size, Any] = {}

    def dimension(size: Size) -> Any:
        if (affine := _carrier(size)) is not None:
            axis, factor, offset = affine
            # Torch refuses operations without effect, such as a multiplication by 1.
            scaled = factor * dims[axis] if factor != 1 else dims[axis]
            return scaled + offset if offset else scaled
        points = component.points()
        low, high = size.bounds(points["min"], points["max"])
        # Axis names never begin with an underscore, so this name cannot collide.
        return composed.setdefault(size, Dim(f"_composed_{len(composed)}", min=max(low, 1), max=high))

    shapes = (
        {i: dimension(left) for i, left in enumerate(component.varying(t)) if isinstance(left, Size)}
        for t in component.inputs
    )
    return dict(inspect.signature(module.forward).bind(*shapes).arguments)


@contextmanager
def related(component: Component, module: torch.nn.Module) -> Iterator[None]:
    """Let a network be traced with composed dimensions computed from the axes that other dimensions carry.

    Inputs keep their values and shapes; only the trace learns how the shapes are related. A dimension with an
    axis that no input carries stays independent.
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
    """Name the dimensions of a graph's inputs and outputs as in the component's description."""
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
    """Input dimension that carries an axis: `dim` of input `index` has size ``factor * axis + offset``."""

    index: int
    dim: int
    factor: int
    offset: int

    def size_of(self, inputs: tuple[torch.Tensor, ...]) -> int:
        return (inputs[self.index].shape[self.dim] - self.offset) // self.factor


def _reshapes(component: Component) -> dict[int, tuple[Size | int, ...]]:
    """Return the sizes, by index, of inputs with composed dimensions whose axes are all carried by inputs."""
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
    """Return axis, factor and offset if torch can derive the dimension from one axis; None otherwise."""
    return size.affine if size.affine is not None and size.affine[1] > 0 else None
