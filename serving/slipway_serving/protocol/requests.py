"""Conversion between frozen request dataclasses and Triton tensors, for all model families.

The dataclass is the only description of a request; its fields are declared with
:mod:`slipway_serving.protocol.fields`. :func:`encode` makes the tensors of a request in the client,
:func:`decode` makes the request from the tensors in the server. Both sides apply the same rules: the client
when it builds the dataclass, the server when it receives the tensors. This module needs numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.fields import BATCH, Array, Field, agreement_problems, fields_of
from slipway_serving.protocol.fields import encode as encode_fields
from slipway_serving.protocol.turns import Turn

R = TypeVar("R", bound="Request")

USUAL_PARAMETER = "usual_"
"""Prefix of the parameters in a served model's configuration that give usual values of request fields."""
RANGE_PARAMETER = "range_"
"""Prefix of the parameters in a served model's configuration that give the smallest and the largest value of
a request field, as "LOW:HIGH"."""
WORDS_PARAMETER = "words_"
"""Prefix of the parameters in a served model's configuration that list the words that the checkpoint knows in
a text field, with spaces between them. A model without the parameter does not say which it knows."""
EXAMPLE_PARAMETER = "example_"
"""Prefix of the parameters in a served model's configuration that give an example of a request field: a text
as it is, a picture as base64 text of its file."""
NOTE_PARAMETER = "checkpoint_note"
"""Parameter in a served model's configuration with sentences of the checkpoint's makers to its users."""
SHAPE_PARAMETER = "shape_"
"""Prefix of the request parameter that gives an input's shape if a protocol carries only flat arrays."""
NO_LIMITS: Mapping[str, range] = {}


class Request:
    """Base class of request dataclasses: every field has ``Annotated[type, Rule | Array | Image]``.

    Attributes:
        model: Name of the served model that takes the request; errors name it.
        events: Event classes with which the model answers.
        streams: True if the model answers several times, False if it answers exactly once.
        turn: Request class with the fields of each turn, for a request that opens a session; else None. The
            fields of both are inputs of one model; the opening request's come with the first turn only.
        turn_alternatives: Request classes that a turn may carry instead of `turn`.
        turn_s: Time that a turn covers, in seconds, for a session whose turns come in real time;
            None if nothing tells it. Load tests send the turns at this pace.
    """

    model: ClassVar[str]
    events: ClassVar[tuple[type[Event], ...]] = ()
    streams: ClassVar[bool] = True
    turn: ClassVar[type[Request] | None] = None
    turn_alternatives: ClassVar[tuple[type[Request], ...]] = ()
    turn_s: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        raise_all(self.model, self.problems())

    def problems(self, limits: Mapping[str, range] = NO_LIMITS) -> list[str]:
        """Return a sentence for each broken rule.

        Args:
            limits: Sizes of named axes that the served model allows, in addition to the rules of the fields.
        """
        described = fields_of(type(self))
        values = {field.name: getattr(self, field.name) for field in described}
        problems = [problem for field in described if (problem := field.problem(values[field.name], limits))]
        return problems or agreement_problems(values, described) or self.conflicts()

    def conflicts(self) -> list[str]:
        """Return the broken rules that concern several fields; called only if each field is valid."""
        return []

    @classmethod
    def sample_values(cls, random: np.random.Generator) -> Mapping[str, Any]:
        """Return values of fields for a request like that of a user, drawn by a random generator.

        Load tests and soaks use them. Fields that are left out keep their default, or get a value that keeps
        the rule of the field. A class needs the method only if such values do not fit together.
        """
        return {}

    def result_shape(self) -> tuple[int, ...] | None:
        """Return the shape of all frames that the request asks for; None if it does not determine it."""
        return None


def encode(request: Request) -> dict[str, NDArray[Any]]:
    """Turn a request into its tensors.

    Args:
        request: Valid request; its constructor has checked the rules.

    Returns:
        One array per field that is not None: scalars with shape [1], text as UTF-8 bytes in an object array,
        arrays unchanged, pictures as the bytes of an image file.
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
        request_class: Class of the request.
        tensors: Arrays by field name.
        where: Name of the requested model, for the error message.
        limits: Sizes of named axes that the served model allows, in addition to the rules of the fields.

    Raises:
        InvalidRequest: A field is unknown, missing or invalid; the message names all such fields.
    """
    known = fields_of(request_class)
    names = {field.name for field in known}
    problems = [
        f"{name} must be a field of the request, got an unknown field; try one of {', '.join(sorted(names))}"
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
    """Turn the tensors of a session's turn into the opening request, on the first turn, and the turn's own.

    Args:
        opening: Class of the request that opens a session; its `turn` declares the fields of each turn.
        tensors: Arrays by field name.
        where: Name of the requested model, for the error message.
        turn: Position of the request in its session.
        limits: Sizes of named axes, see :func:`decode`.

    Returns:
        The opening request, or None after the first turn, and the turn's own request.

    Raises:
        InvalidRequest: A field is unknown, missing or invalid, or a field of the opening request came after
            the first turn; the message names all such fields.
        TypeError: The request class opens no session.
    """
    if opening.turn is None:
        raise TypeError(f"{opening.__name__} must declare the class of its turns")
    opening_names = {field.name for field in fields_of(opening)}
    if not turn.start and (late_names := [name for name in tensors if name in opening_names]):
        names = ", ".join(late_names)
        raise_all(
            where,
            [f"{names} must be given in the first turn of a session, got a later turn; try a new session"],
        )
    first = {name: tensor for name, tensor in tensors.items() if name in opening_names}
    rest = {name: tensor for name, tensor in tensors.items() if name not in opening_names}
    opening_request = decode(opening, first, where, limits) if turn.start else None
    return opening_request, decode(opening.turn, rest, where, limits)


def decode_alternative(
    opening: type[Request], tensors: Mapping[str, NDArray[Any]], where: str
) -> Request | None:
    """Turn the tensors of a turn into one of the alternative requests; return None if they are not one.

    Args:
        opening: Class of the request that opens a session; its `turn_alternatives` lists the others.
        tensors: Arrays by field name.
        where: Name of the requested model, for the error message.

    Raises:
        InvalidRequest: A field is unknown, missing or invalid; the message names all such fields.
    """
    for other in opening.turn_alternatives:
        if any(field.name in tensors for field in fields_of(other) if not field.optional):
            return decode(other, tensors, where)
    return None


def input_fields(request: type[Request]) -> tuple[Field, ...]:
    """Return the inputs of the model that takes a request: the fields of the request and of its turns."""
    turn_classes = (*((request.turn,) if request.turn is not None else ()), *request.turn_alternatives)
    found: dict[str, Field] = {}
    for each in (request, *turn_classes):
        for field in fields_of(each):
            found.setdefault(field.name, field)
    return tuple(found.values())


def ending_tensors(request: type[Request]) -> dict[str, NDArray[Any]]:
    """Return the tensors of a request that only ends a session.

    Triton batches only requests that have an input, so for a model that batches, the inputs of a turn are
    empty arrays.

    Args:
        request: Class of the request that opens sessions.
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
