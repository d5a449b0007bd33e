"""Axes, tensors and the bounds within which a tensor's values must agree with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway_export.spec.formats import DType
from slipway_serving.protocol.axis_expressions import Point, Size
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np

BATCH = "batch"
"""Name of the axis that Triton may batch over. A graph is batched if all its tensors begin with this axis."""


@dataclass(frozen=True)
class Axis:
    """A named dimension and the range that it may take.

    Args:
        name: Word that names the axis, e.g. ``latent_frames``.
        min: Smallest size, at least 1.
        opt: Size that the export traces, tunes for and warms up with.
        max: Largest size.
    """

    name: str
    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        if not 1 <= self.min <= self.opt <= self.max:
            raise InvalidRequest(
                f"axis {self.name} must have 1 <= min <= opt <= max, got {self.min}:{self.opt}:{self.max}"
            )

    def around(self, size: int) -> Axis:
        """Return the axis traced at another size, with its range extended to include that size."""
        return Axis(self.name, min(self.min, size), size, max(self.max, size))

    @property
    def fixed(self) -> Axis:
        """The axis with the traced size as its only size."""
        return Axis(self.name, self.opt, self.opt, self.opt)

    def unseen(self, low: bool) -> int:
        """Return a size within the range that is none of min, opt and max, or opt if there is no other.

        Args:
            low: True to look between min and opt first, False to look between opt and max first. Alternate it
                from axis to axis to get a point at which no two axes agree by chance.
        """
        below, above = range(self.min + 1, self.opt), range(self.opt + 1, self.max)
        for sizes in (below, above) if low else (above, below):
            if sizes:
                return sizes[len(sizes) // 2]
        return self.opt


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a graph.

    Args:
        name: Name of the tensor in the PyTorch forward.
        dtype: Element type.
        shape: Dimensions: an int for a fixed one; otherwise an axis or a sum of products of axes, such as
            ``"4 * frames - 3"`` or ``"height * width + text_tokens"``
            (:class:`slipway_serving.protocol.axis_expressions.Size`).
        values: Half-open range of the integers with which an input is verified. With None, a float type gets
            normal noise, uint8 its whole range, and any other type 0 and 1.
        ones: True if the verification input is all ones (masks).
        initial: Value that fills the input before the first step of a :class:`Stepped`; None if a separate
            graph produces the first value.
        exact: True if every element of the output must equal PyTorch's in any precision (labels, indices).
        example: Function that makes the verification input of a given shape, for inputs where random values
            are not what a served network sees (token ids of real texts).
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    values: tuple[int, int] | None = None
    ones: bool = False
    initial: float | None = None
    exact: bool = False
    example: Callable[[tuple[int, ...]], np.ndarray[Any, Any]] | None = None

    def __post_init__(self) -> None:
        low, high = self.values or self.dtype.values
        limit = {DType.UINT8: 256, DType.BOOL: 2}.get(self.dtype)
        if not (low < high and (limit is None or (low >= 0 and high <= limit))):
            raise InvalidRequest(
                f"tensor {self.name} must have values of {self.dtype.value} in a range that is not empty,"
                f" got {low} to {high - 1}"
            )

    @property
    def sizes(self) -> tuple[int | Size, ...]:
        """Dimensions with the expressions parsed."""
        return tuple(Size.parse(size) if isinstance(size, str) else size for size in self.shape)

    @property
    def batched(self) -> bool:
        """Whether Triton may batch over the first dimension."""
        return bool(self.shape) and self.shape[0] == BATCH

    def at(self, point: Point) -> tuple[int, ...]:
        """Return the shape at a point, which gives the size of every axis."""
        return tuple(size.at(point) if isinstance(size, Size) else size for size in self.sizes)


@dataclass(frozen=True)
class Tolerance:
    """Bounds of a verified graph against PyTorch in float32.

    Args:
        max_abs: Largest absolute difference.
        relative_l2: ``|graph - torch| / |torch|`` in the L2 norm.
        cosine: Smallest cosine similarity.
        row_cosine: Smallest cosine similarity of a row along the last dimension, such as a token's embedding.
            The loss of one row hardly shows in the whole tensor. None if the rows have no meaning of their
            own.
    """

    max_abs: float
    relative_l2: float
    cosine: float
    row_cosine: float | None = None
