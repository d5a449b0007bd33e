"""From a frozen request dataclass to its Triton tensors and back; no family is known here.

The dataclass is the one description: its fields are stated as :mod:`slipway_serving.fields` has it.
:func:`encode` makes the tensors of a request (in the client), :func:`decode` makes the request from them (in
the server). Both ends apply the same rules: the client when the dataclass is built, the server once more on
what arrived. Needs numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import raise_all
from slipway_serving.events import Event
from slipway_serving.fields import BATCH, Array, Field, agreement_problems, fields_of
from slipway_serving.fields import encode as encode_fields
from slipway_serving.turns import Turn

R = TypeVar("R", bound="Request")

USUAL = "usual_"
"""Begins the parameters of a served model's configuration that tell usual values of its request's fields."""
SHAPE_PARAMETER = "shape_"
"""Begins the request parameter that tells an input's shape where a protocol carries flat arrays only."""
NO_LIMITS: Mapping[str, range] = {}


class Request:
    """Base of request dataclasses: every field is annotated ``Annotated[type, Rule | Array | Image]``.

    Attributes:
        model: the served model that takes the request; errors name it.
        events: what the model answers with.
        streams: whether it answers several times; else exactly once.
        turn: for a request that opens a session: what each of its turns brings. The fields of both are inputs
            of one model; those of the opening request come with the first turn only.
        instead: for such a request: what a turn may bring in place of that.
    """

    model: ClassVar[str]
    events: ClassVar[tuple[type[Event], ...]] = ()
    streams: ClassVar[bool] = True
    turn: ClassVar[type[Request] | None] = None
    instead: ClassVar[tuple[type[Request], ...]] = ()

    def __post_init__(self) -> None:
        raise_all(self.model, self.problems())

    def problems(self, limits: Mapping[str, range] = NO_LIMITS) -> list[str]:
        """Return every broken rule as a sentence.

        Args:
            limits: sizes of named axes that the served model allows, beside those of the fields.
        """
        described = fields_of(type(self))
        values = {field.name: getattr(self, field.name) for field in described}
        problems = [problem for field in described if (problem := field.problem(values[field.name], limits))]
        return problems or agreement_problems(values, described) or self.conflicts()

    def conflicts(self) -> list[str]:
        """Return the broken rules that concern several fields; only asked when each field is fine."""
        return []

    def result_shape(self) -> tuple[int, ...] | None:
        """Return the shape of all frames that the request asks for; None where it does not say."""
        return None


def encode(request: Request) -> dict[str, NDArray[Any]]:
    """Turn a request into its tensors.

    Args:
        request: a valid request (being built proves that).

    Returns:
        One array per field that is not None: scalars in shape [1], text as UTF-8 bytes in an object array,
        arrays as they are, pictures as the bytes of a file.
    """
    return encode_fields(request)


def decode(
    request_class: type[R],
    tensors: Mapping[str, NDArray[Any]],
    where: str,
    limits: Mapping[str, range] = NO_LIMITS,
) -> R:
    """Turn tensors into a request; fields without a tensor take their defaults.

    Args:
        request_class: what to build.
        tensors: by field name.
        where: the model that was asked, for the message.
        limits: sizes of named axes that the served model allows, beside those of the fields.

    Raises:
        InvalidRequest: naming every unknown, missing or refused field.
    """
    known = fields_of(request_class)
    names = {field.name for field in known}
    problems = [
        f"{name} must be a field of the request, got an unknown one; try one of {', '.join(sorted(names))}"
        for name in sorted(set(tensors) - names)
    ]
    values: dict[str, Any] = {}
    for field in known:
        problem = ""
        if field.name in tensors:
            value, problem = field.decode(tensors[field.name])
            problem = problem or field.problem(value, limits)
            values[field.name] = value
        elif not field.optional:
            problem = f"{field.name} must be given, got nothing; try giving {field.rule.help}"
        problems += [problem] if problem else []
    raise_all(where, problems)
    raise_all(where, agreement_problems(values, known))
    return request_class(**values)


def decode_turn(
    opening: type[R],
    tensors: Mapping[str, NDArray[Any]],
    where: str,
    turn: Turn,
    limits: Mapping[str, range] = NO_LIMITS,
) -> tuple[R | None, Any]:
    """Turn the tensors of a session's turn into the request that opens it, at its start, and what it brings.

    Args:
        opening: the request that opens a session; its `turn` says what each turn brings.
        tensors: by field name.
        where: the model that was asked, for the message.
        turn: the request's place in its session.
        limits: as of :func:`decode`.

    Returns:
        The opening request, None after the first turn, and the turn's own.

    Raises:
        InvalidRequest: naming every unknown, missing or refused field, and those that came too late.
        TypeError: the request opens no session.
    """
    if opening.turn is None:
        raise TypeError(f"{opening.__name__} must say what its turns bring")
    at_start = {field.name for field in fields_of(opening)}
    if not turn.start and (late := [name for name in tensors if name in at_start]):
        rule = f"{', '.join(late)} must come with SEQUENCE_START, got later; try a new session"
        raise_all(where, [rule])
    first = {name: tensor for name, tensor in tensors.items() if name in at_start}
    rest = {name: tensor for name, tensor in tensors.items() if name not in at_start}
    opened = decode(opening, first, where, limits) if turn.start else None
    return opened, decode(opening.turn, rest, where, limits)


def decode_instead(opening: type[Request], tensors: Mapping[str, NDArray[Any]], where: str) -> Request | None:
    """Turn the tensors of a turn into what it brings in place of the session's own; None where it does not.

    Args:
        opening: the request that opens a session; its `instead` says what there is.
        tensors: by field name.
        where: the model that was asked, for the message.

    Raises:
        InvalidRequest: naming every unknown, missing or refused field.
    """
    for other in opening.instead:
        if any(field.name in tensors for field in fields_of(other) if not field.optional):
            return decode(other, tensors, where)
    return None


def input_fields(request: type[Request]) -> tuple[Field, ...]:
    """List the inputs of the model that takes a request: its fields, and those of its turns, each once."""
    in_turns = (*((request.turn,) if request.turn is not None else ()), *request.instead)
    found: dict[str, Field] = {}
    for each in (request, *in_turns):
        for field in fields_of(each):
            found.setdefault(field.name, field)
    return tuple(found.values())


def ending(request: type[Request]) -> dict[str, NDArray[Any]]:
    """Return the tensors of a request that ends a session and asks for nothing more.

    Triton batches only requests that have an input: for a model that batches, what a turn brings is empty.

    Args:
        request: the one that opens sessions.
    """
    needed = fields_of(request.turn) if request.turn is not None else ()
    return {
        field.name: np.zeros(
            [1 if axis == BATCH else 0 if isinstance(axis, str) else axis for axis in field.rule.shape],
            field.rule.numpy,
        )
        for field in needed
        if isinstance(field.rule, Array) and field.rule.shape[:1] == (BATCH,) and not field.optional
    }
