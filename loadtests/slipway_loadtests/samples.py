"""Sample requests of any family: made from the rules of their fields and from what the served model says.

A field gets, in this order, what the request class proposes (:meth:`Request.sample_values`), the example or
the usual value that the served model gives, and a value that is drawn until it keeps the field's rule. Fields
with a default keep it, except the seed. The whole request is drawn again if its fields do not fit together.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from slipway_client.served_model import ServedModel
from slipway_serving.protocol.diffusion.fields import Seed
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import BATCH, Array, Field, Image, fields_of
from slipway_serving.protocol.requests import Request

R = TypeVar("R", bound=Request)

_SEED_RULE = get_args(Seed)[1]
_DRAWS, _VALUE_DRAWS = 64, 256
_LONGEST_AXIS, _LONGEST_SIDE_PX, _SIDE_STEP_PX = 16, 256, 16
_WORDS = 5
_TEXTS = ("a red ball grows on sand", "a blue square moves to the left", "rain over a green hill")


def sample(
    request: type[R],
    served: ServedModel,
    random: np.random.Generator,
    stated: Mapping[str, Any] | None = None,
) -> R:
    """Return a request like that of a user.

    Args:
        request: Class of the request, or of a session's turn.
        served: Description that the served model gives of itself.
        random: Random generator of the values.
        stated: Values of fields that are used as they are.

    Raises:
        InvalidRequest: A stated value breaks its rule, or no drawn values keep the rules of the request; the
            message names the rule and what the family's package must provide.
    """
    stated = stated or {}
    for _ in range(_DRAWS):
        try:
            return request(**{**_drawn(request, served, random, stated), **stated})
        except InvalidRequest as error:
            problem = error
    given = ", ".join(sorted(stated))
    raise InvalidRequest(
        f"{request.model}: {request.__name__} must be made from the rules of its fields"
        f"{f' and the given {given}' if given else ''}, got: {problem}; try a method sample_values of"
        f" {request.__name__} that returns values of these fields"
    )


def sampled_values(request: Request) -> dict[str, Any]:
    """Return the values of a request without those that equal the field's default."""
    values = [(field, getattr(request, field.name)) for field in fields_of(type(request))]
    return {
        field.name: value
        for field, value in values
        if not field.optional or isinstance(value, np.ndarray) or value != field.default
    }


def wrong_values(request: type[Request]) -> dict[str, Any]:
    """Return a value for each field of a request that breaks the field's rule, where one is easily found."""
    found = {}
    for field in fields_of(request):
        for value in _wrong(field):
            if field.problem(value).startswith(f"{field.name} must be"):
                found[field.name] = value
                break
    return found


def _drawn(
    request: type[Request], served: ServedModel, random: np.random.Generator, stated: Mapping[str, Any]
) -> dict[str, Any]:
    values = dict(request.sample_values(random))
    sizes: dict[str, int] = {}
    for field in fields_of(request):
        if field.name in values or field.name in stated:
            continue
        if field.name in served.usual and field.kind in (int, float):
            values[field.name] = field.kind(served.usual[field.name])
        elif field.optional and field.rule is _SEED_RULE:
            values[field.name] = int(random.integers(2**31))
        elif not field.optional:
            values[field.name] = _value(field, served, random, sizes)
    return values


def _value(field: Field, served: ServedModel, random: np.random.Generator, sizes: dict[str, int]) -> Any:
    example = served.examples.get(field.name)
    if isinstance(field.rule, Image):
        return base64.b64decode(example) if example else _picture(field.rule, served, random)
    if isinstance(field.rule, Array):
        return _array(field.rule, served, random, sizes)
    if field.kind is str:
        return example or _text(field, served, random)
    if field.kind is bytes:
        return b""  # No rule tells what bytes mean: a class with such a field proposes them.
    if field.kind is bool:
        return bool(random.integers(2))
    return _number(field, served, random)


def _text(field: Field, served: ServedModel, random: np.random.Generator) -> str:
    if words := served.words.get(field.name):
        return " ".join(str(random.choice(words)) for _ in range(_WORDS))
    text = str(random.choice(_TEXTS))
    # A field that refuses any text has a list of choices, and advises one of them.
    return field.rule.fix(text) if field.problem(text) and not isinstance(field.rule, Array | Image) else text


def _number(field: Field, served: ServedModel, random: np.random.Generator) -> int | float:
    """Draw numbers of all magnitudes until one keeps the rule; return the last one if none does."""
    value: int | float = 0
    if field.name in served.ranges:
        low, high = served.ranges[field.name]
        return field.kind(random.integers(low, high + 1))  # type: ignore[no-any-return]
    for draw in range(_VALUE_DRAWS):
        largest = 10 ** (4 - 4 * draw / _VALUE_DRAWS)
        value = field.kind(random.uniform(0, largest))
        if not field.problem(value):
            break
    return value


def _picture(rule: Image, served: ServedModel, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return a picture of two colours that run into each other, of the usual sides or of drawn ones."""
    largest = min(rule.largest_px, max(_LONGEST_SIDE_PX, rule.smallest_px))
    sides = np.arange(rule.smallest_px, largest + 1)
    even = sides[sides % _SIDE_STEP_PX == 0]
    height, width = (
        int(served.usual.get(name, 0)) or int(random.choice(even if even.size else sides))
        for name in ("height", "width")
    )
    ends = random.uniform(0, 255, (2, 3))
    slope = np.add.outer(np.linspace(0, 0.5, height), np.linspace(0, 0.5, width))[..., None]
    pixels: NDArray[np.uint8] = np.round(ends[0] + slope * (ends[1] - ends[0])).astype(np.uint8)
    return pixels


def _array(
    rule: Array, served: ServedModel, random: np.random.Generator, sizes: dict[str, int]
) -> NDArray[Any]:
    shape = [
        axis if isinstance(axis, int) else sizes.setdefault(axis, _size(rule, axis, served, random))
        for axis in rule.shape
    ]
    if rule.dtype == "text":
        texts = [str(random.choice(_TEXTS)) for _ in range(int(np.prod(shape)))]
        return np.array(texts, np.str_).reshape(shape)
    if rule.dtype.startswith("float"):
        low, high = (-1.0 if rule.low is None else rule.low), (1.0 if rule.high is None else rule.high)
        return random.uniform(low, high, shape).astype(rule.numpy)
    low, high = (0 if rule.low is None else rule.low), (1 if rule.high is None else rule.high)
    return random.integers(int(low), int(high) + 1, shape).astype(rule.numpy)


def _size(rule: Array, axis: str, served: ServedModel, random: np.random.Generator) -> int:
    low, high = served.ranges.get(axis) or rule.sizes.get(axis, (1, None))
    if axis in served.usual:
        return int(served.usual[axis])
    most = max(low, _LONGEST_AXIS)
    return low if axis == BATCH else int(random.integers(low, min(most, high or most) + 1))


def _wrong(field: Field) -> list[Any]:
    """Return values that may break a field's rule."""
    rule = field.rule
    if isinstance(rule, Array):
        shape = [axis if isinstance(axis, int) else rule.sizes.get(axis, (1, None))[0] for axis in rule.shape]
        if rule.dtype.startswith("float"):
            return [np.full(shape, np.nan, rule.numpy)]
        beyond = [bound for bound in (rule.high and rule.high + 1, rule.low and rule.low - 1) if bound]
        return [np.full(shape, bound).astype(rule.numpy) for bound in beyond]
    if isinstance(rule, Image):
        return [b"no picture"]
    if field.kind is str:
        return ["no such choice"]
    return [-1, 0, 2**31] if field.kind is int else [-1.0] if field.kind is float else []
