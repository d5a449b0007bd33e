"""Check the sizes of a network's inputs against the exported ranges of its axes, before the network runs.

An export writes the ranges into the parameter ``axes`` of ``config.pbtxt``. The graph names each dynamic
dimension by its expression, such as ``4*frames - 3``. :class:`InputSizes` combines both: it derives the size
of each axis from the shapes of a request and refuses a size outside the range, a size that no value of the
axis yields, and inputs that disagree about an axis.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slipway_serving.protocol.axis_expressions import Size
from slipway_serving.protocol.errors import InvalidRequest

AXES_PARAMETER = "axes"
"""Parameter of ``config.pbtxt`` with the ranges, e.g. ``batch=1:2 latent_frames=1:21``."""

Shape = Sequence[int | str]
"""Sizes of a tensor; a dynamic dimension is its expression, or "" if the graph has no name for it."""

_RANGE = re.compile(r"([a-z][a-z0-9_]*)=([1-9]\d*):([1-9]\d*)")


def ranges_text(ranges: Mapping[str, tuple[int, int]]) -> str:
    """Format smallest and largest sizes by axis name as the value of :data:`AXES_PARAMETER`."""
    return " ".join(f"{axis}={low}:{high}" for axis, (low, high) in ranges.items())


def read_ranges(model: str, parameters: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Read smallest and largest sizes by axis name; return none if the configuration has no ranges.

    Args:
        model: Name of the model, for messages.
        parameters: Parameters of the model's configuration.

    Raises:
        InvalidRequest: The parameter does not have the form that :func:`ranges_text` writes.
    """
    found = {}
    for text in parameters.get(AXES_PARAMETER, "").split():
        match = _RANGE.fullmatch(text)
        low, high = (int(match[2]), int(match[3])) if match else (1, 0)
        if match is None or low > high:
            raise InvalidRequest(
                f"{model}: parameter {AXES_PARAMETER} of config.pbtxt must have entries AXIS=MIN:MAX with MIN"
                f" at most MAX, got {text!r}; try exporting again"
            )
        found[match[1]] = (low, high)
    return found


@dataclass(frozen=True)
class _Dimension:
    """Dynamic dimension of an input.

    Attributes:
        tensor: Name of the input.
        index: Index of the dimension in the input's shape.
        name: Text of the dimension in the graph.
        size: Expression of axes; None if the text is not an expression.
    """

    tensor: str
    index: int
    name: str
    size: Size | None

    @property
    def order(self) -> int:
        """Rank of evaluation: plain axes come first, then affine expressions, then all others."""
        if self.size is None or self.size.affine is None:
            return 2
        return 0 if self.size.affine[1:] == (1, 0) else 1


@dataclass
class _KnownSizes:
    """Sizes that are known so far from the shapes of one request.

    Attributes:
        axes: Size of each axis, and the input that determined it.
        names: Size of each expression, and the input that determined it.
    """

    axes: dict[str, tuple[int, str]] = field(default_factory=dict)
    names: dict[str, tuple[int, str]] = field(default_factory=dict)


class InputSizes:
    """Allowed sizes of one network's inputs.

    Args:
        shapes: Shape of each input as the graph states it.
        ranges: Smallest and largest size by axis name; an axis without a range may have any size.
    """

    def __init__(self, shapes: Mapping[str, Shape], ranges: Mapping[str, tuple[int, int]]) -> None:
        self._ranges = dict(ranges)
        fixed = {axis: low for axis, (low, high) in ranges.items() if low == high}
        parsed = {text: _parse(text, fixed) for shape in shapes.values() for text in shape}
        # An expression becomes a number if each of its axes allows a single size.
        self._shapes = {
            tensor: tuple(size if isinstance(size := parsed[text], int) else text for text in shape)
            for tensor, shape in shapes.items()
        }
        dimensions = [
            _Dimension(tensor, index, text, size)
            for tensor, shape in self._shapes.items()
            for index, text in enumerate(shape)
            if isinstance(text, str) and text and not isinstance(size := parsed[text], int)
        ]
        self._dimensions = sorted(dimensions, key=lambda dimension: dimension.order)

    def problems(self, given: Mapping[str, Sequence[int]]) -> list[str]:
        """List the broken rules as sentences that name the input, the axis, its range and the size.

        Args:
            given: Shapes in a request by input name; names that the network does not have are ignored.
        """
        problems = [
            f"{tensor} must have shape {_dims(shape)}, got {list(given[tensor])}"
            for tensor, shape in self._shapes.items()
            if tensor in given and not _matches(shape, given[tensor])
        ]
        if problems:
            return problems
        sizes = _KnownSizes()
        for dimension in self._dimensions:
            if dimension.tensor in given:
                problem = self._problem(dimension, given[dimension.tensor][dimension.index], sizes)
                problems += [problem] if problem else []
        return problems

    def _problem(self, dimension: _Dimension, given: int, sizes: _KnownSizes) -> str | None:
        """Return the rule that a dimension breaks, and record the axis size that it determines."""
        known, first = sizes.names.setdefault(dimension.name, (given, dimension.tensor))
        if known != given:
            return f"{dimension.tensor} must have {known} for {dimension.name} as {first} has, got {given}"
        if dimension.size is None:
            return None
        axes = {axis: sizes.axes[axis][0] for axis in dimension.size.axes & sizes.axes.keys()}
        left = dimension.size.substitute(axes)
        if isinstance(left, Size):
            return None if self._is_inside(left, given, dimension, sizes) else self._outside(dimension, given)
        known_axes = ", ".join(f"{axis} = {at} of {sizes.axes[axis][1]}" for axis, at in sorted(axes.items()))
        rule = f"{dimension.tensor} must have {left} for {dimension.name} ({known_axes}), got {given}"
        return None if left == given else rule

    def _is_inside(self, left: Size, given: int, dimension: _Dimension, sizes: _KnownSizes) -> bool:
        """Return True if axes within their ranges yield a size, and record the axis if there is only one."""
        if left.affine is None:
            low, high = self._bounds(left)
            return low <= given and (high is None or given <= high)
        axis, factor, offset = left.affine
        found, rest = divmod(given - offset, factor)
        if rest:
            return False
        # Record a size outside the range too, so that other inputs do not report the same mistake again.
        sizes.axes[axis] = (found, dimension.tensor)
        low, high = self._ranges.get(axis, (0, None))
        return low <= found and (high is None or found <= high)

    def _bounds(self, size: Size) -> tuple[int, int | None]:
        if not size.axes <= self._ranges.keys():
            return 0, None
        low, high = ({axis: self._ranges[axis][end] for axis in size.axes} for end in (0, 1))
        return size.bounds(low, high)

    def _outside(self, dimension: _Dimension, given: int) -> str:
        """Return the error for a size that lies outside the exported range."""
        assert dimension.size is not None
        axes = {axis: self._ranges[axis] for axis in sorted(dimension.size.axes & self._ranges.keys())}
        if dimension.order == 0:
            ((low, high),) = axes.values()
            return (
                f"{dimension.tensor} must have {low} to {high} for {dimension.name}, the exported range, got"
                f" {given}"
            )
        where = ", ".join(f"{axis} is {low} to {high}" for axis, (low, high) in axes.items())
        return (
            f"{dimension.tensor} must have {dimension.name} in dimension {dimension.index} where {where}, the"
            f" exported range, got {given}"
        )


def _parse(text: int | str, fixed: Mapping[str, int]) -> Size | int | None:
    """Parse the text of a dimension; return None if it is not an expression of axes."""
    if isinstance(text, int):
        return text
    try:
        # Graphs write products without the spaces that Size.parse expects.
        return Size.parse(text.replace("*", " * ")).substitute(fixed)
    except InvalidRequest:
        return None


def _matches(shape: Shape, given: Sequence[int]) -> bool:
    return len(shape) == len(given) and all(
        isinstance(size, str) or size == actual for size, actual in zip(shape, given, strict=True)
    )


def _dims(shape: Shape) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in shape]
