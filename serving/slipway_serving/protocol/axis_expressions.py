"""Tensor dimensions as expressions of axes, parsed once and evaluated at any point.

A tensor's shape contains texts such as ``"4 * frames - 3"`` or ``"height * width + text_tokens"``.
:class:`Size` represents such a text as a polynomial of axes with whole coefficients. The sizes for tracing,
verification, configuration and warmup follow from it. A factor may also be an axis in groups, the last of
which may be incomplete: ``"ceil(height / 4)"``, as for a convolution over padded rows.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slipway_serving.protocol.errors import InvalidRequest

Point = Mapping[str, int]
"""One size for each axis, by axis name."""

_AXIS = r"[a-z][a-z0-9_]*"
_GROUPS = re.compile(rf"ceil\(({_AXIS}) / ([1-9]\d*)\)")
_FACTOR = rf"(?:ceil\({_AXIS} / [1-9]\d*\)|{_AXIS})"
_PRODUCT = rf"(?:\d+ \* )?{_FACTOR}(?: \* {_FACTOR})*"
_SUM = re.compile(rf"{_PRODUCT}(?: [+-] {_PRODUCT})*(?: [+-] \d+)?")
_TERM = re.compile(rf"(?:([+-]) )?({_PRODUCT}|\d+)")


@dataclass(frozen=True)
class Size:
    """Dimension of a tensor: a sum of products of axes and a whole number.

    Args:
        terms: Pairs of a product and its coefficient, in the order of :meth:`parse`, by degree and name. A
            product is its factors in alphabetical order, each the name of an axis or groups of one; the
            product without factors stands for the whole number.
    """

    terms: tuple[tuple[tuple[str, ...], int], ...]

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parse a sum of terms ``axis``, ``2 * axis`` or ``2 * axis * axis`` and a last whole number.

        ``ceil(axis / 4)`` may stand in the place of an axis.

        Raises:
            InvalidRequest: The text is not such a sum, or does not depend on any axis.
        """
        found: Counter[tuple[str, ...]] = Counter()
        if _SUM.fullmatch(text):
            for sign, product in _TERM.findall(text):
                factors = product.split(" * ")
                numbers = [int(factor) for factor in factors if factor.isdigit()]
                axes = tuple(sorted(factor for factor in factors if not factor.isdigit()))
                found[axes] += math.prod(numbers) * (-1 if sign == "-" else 1)
        terms = {axes: factor for axes, factor in found.items() if factor}
        if not any(terms):
            raise InvalidRequest(
                "a dimension must be a sum of axes, products of axes and a final whole number, such as"
                f" '2 * height * width + 9', got {text!r}"
            )
        return cls._ordered(terms)

    @classmethod
    def _ordered(cls, terms: Mapping[tuple[str, ...], int]) -> Size:
        return cls(tuple(sorted(terms.items(), key=lambda term: (-len(term[0]), term[0]))))

    def __str__(self) -> str:
        """Return the dimension in the form that graphs use: ``2*height*width + 9``."""
        text = ""
        for axes, factor in self.terms:
            product = "*".join([*([str(abs(factor))] if abs(factor) != 1 or not axes else []), *axes])
            sign = "-" if factor < 0 else "+"
            text += f" {sign} {product}" if text else f"{'-' if factor < 0 else ''}{product}"
        return text

    @property
    def axes(self) -> frozenset[str]:
        """Names of the axes that the dimension depends on."""
        return frozenset(_axis_of(factor) for factors, _ in self.terms for factor in factors)

    @property
    def affine(self) -> tuple[str, int, int] | None:
        """Axis, factor and offset if the dimension is ``factor * axis + offset``; None otherwise."""
        products = dict(self.terms)
        offset = products.pop((), 0)
        if len(products) != 1:
            return None
        ((axes, factor),) = products.items()
        return (axes[0], factor, offset) if len(axes) == 1 and axes[0] == _axis_of(axes[0]) else None

    def substitute(self, point: Point) -> Size | int:
        """Return the dimension after some axes have got a size: a number, or an expression of the others."""
        remaining: Counter[tuple[str, ...]] = Counter()
        for axes, factor in self.terms:
            known = math.prod(_size_of(axis, point) for axis in axes if _axis_of(axis) in point)
            remaining[tuple(axis for axis in axes if _axis_of(axis) not in point)] += factor * known
        terms = {axes: factor for axes, factor in remaining.items() if factor}
        return Size._ordered(terms) if any(terms) else remaining[()]

    def bounds(self, low: Point, high: Point) -> tuple[int, int]:
        """Return a lower and an upper bound of the size for axes between two points."""
        ends = [
            sorted(factor * math.prod(_size_of(axis, point) for axis in axes) for point in (low, high))
            for axes, factor in self.terms
        ]
        return sum(least for least, _ in ends), sum(most for _, most in ends)

    def at(self, point: Point) -> int:
        """Return the size of the dimension at a point."""
        return sum(factor * math.prod(_size_of(axis, point) for axis in axes) for axes, factor in self.terms)


def _axis_of(factor: str) -> str:
    """Return the axis that a factor of a product depends on."""
    groups = _GROUPS.fullmatch(factor)
    return groups[1] if groups else factor


def _size_of(factor: str, point: Point) -> int:
    """Return the value of a factor at a point; during tracing, the sizes of a point are symbols."""
    groups = _GROUPS.fullmatch(factor)
    if groups is None:
        return point[factor]
    each = int(groups[2])
    return (point[groups[1]] + each - 1) // each
