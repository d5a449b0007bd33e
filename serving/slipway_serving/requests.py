"""From a frozen request dataclass to its Triton tensors and back; no family is known here.

The dataclass is the one description: an annotation ``Annotated[int, Rule(...)]`` gives a field's tensor
type and its rule. :func:`tensor_fields` lists the tensors, :func:`encode` makes them from a request (in
the client), :func:`decode` makes the request from them (in the server). Both ends apply the same rules:
the client when the dataclass is built, the server once more on what arrived. Needs numpy only.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from slipway_serving.errors import raise_all

R = TypeVar("R", bound="Request")

_DATATYPES: dict[type, str] = {str: "BYTES", int: "INT64", float: "FP32", bool: "BOOL"}
_DTYPES: dict[type, Any] = {str: np.object_, int: np.int64, float: np.float32, bool: np.bool_}
_A = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_INT64 = np.iinfo(np.int64)
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Rule:
    """What the values of one field may be.

    Attributes:
        must: completes "``<field>`` must be", for example "4k+1 and at least 1".
        accepts: tells whether a value of the field's own type keeps the rule.
        fix: what to do instead, given the refused value; completes "try".
        help: one line for people: what the field is, with its unit.
        shown: how a refused value is shown; by default its shortened repr.
    """

    must: str
    accepts: Callable[[Any], bool]
    fix: Callable[[Any], str]
    help: str
    shown: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class TensorField:
    """One field of a request as the Triton tensor that carries it.

    Attributes:
        name: the field's and the tensor's name.
        datatype: Triton's name of the element type: BYTES, INT64, FP32 or BOOL.
        shape: of the tensor, without any batch dimension.
        optional: whether a request may leave the tensor out.
        nullable: whether the value may be None, which has no tensor.
        kind: the Python type of the value.
        rule: what the value must be.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool
    nullable: bool
    kind: type[Any]
    rule: Rule


class Request:
    """Base of request dataclasses: every field is annotated ``Annotated[type, Rule(...)]``.

    Attributes:
        model: the served model that takes the request; errors name it.
    """

    model: ClassVar[str]

    def __post_init__(self) -> None:
        problems = [
            problem
            for field in tensor_fields(type(self))
            if (problem := _problem(field, getattr(self, field.name)))
        ]
        raise_all(self.model, problems or self.conflicts())

    def conflicts(self) -> list[str]:
        """Return the broken rules that concern several fields; only asked when each field is fine."""
        return []


def tensor_fields(request_class: type[Request]) -> tuple[TensorField, ...]:
    """List the tensors of a request class, in the order of its fields.

    Args:
        request_class: a dataclass whose fields are all annotated with a :class:`Rule`.

    Raises:
        TypeError: a field's type has no tensor type, or its annotation has no rule.
    """
    hints = get_type_hints(request_class, include_extras=True)
    return tuple(
        _tensor_field(f"{request_class.__name__}.{field.name}", field.name, hints[field.name], field.default)
        for field in fields(request_class)  # type: ignore[arg-type]
    )


def encode(request: Request) -> dict[str, NDArray[Any]]:
    """Turn a request into its tensors.

    Args:
        request: a valid request (being built proves that).

    Returns:
        One array of shape [1] per field that is not None; text as UTF-8 bytes in an object array.
    """
    tensors = {}
    for field in tensor_fields(type(request)):
        value = getattr(request, field.name)
        if value is not None:
            element = value.encode() if field.kind is str else value
            tensors[field.name] = np.array([element], dtype=_DTYPES[field.kind])
    return tensors


def decode(request_class: type[R], tensors: Mapping[str, NDArray[Any]], where: str) -> R:
    """Turn tensors into a request; fields without a tensor take their defaults.

    Args:
        request_class: what to build.
        tensors: by field name, each of shape [1].
        where: the model that was asked, for the message.

    Raises:
        InvalidRequest: naming every unknown, missing or refused field.
    """
    known = tensor_fields(request_class)
    names = {field.name for field in known}
    problems = [
        f"{name} must be a field of the request, got an unknown one; try one of {', '.join(sorted(names))}"
        for name in sorted(set(tensors) - names)
    ]
    values: dict[str, Any] = {}
    for field in known:
        if field.name in tensors:
            value, problem = _element(field, tensors[field.name])
            problem = problem or _problem(field, value)
            values[field.name] = value
        else:
            problem = (
                ""
                if field.optional
                else f"{field.name} must be given, got nothing; try giving {field.rule.help}"
            )
        problems += [problem] if problem else []
    raise_all(where, problems)
    return request_class(**values)


def _tensor_field(where: str, name: str, hint: Any, default: Any) -> TensorField:
    rules = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Rule)]
    annotated = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    union = get_origin(annotated) in (Union, types.UnionType)
    members = get_args(annotated) if union else (annotated,)
    kinds = [kind for kind in members if kind is not types.NoneType]
    if len(kinds) != 1 or kinds[0] not in _DATATYPES or len(rules) != 1:
        allowed = ", ".join(kind.__name__ for kind in _DATATYPES)
        raise TypeError(f"{where} must be Annotated[<one of {allowed}, or None>, Rule(...)], got {hint}")
    return TensorField(
        name=name,
        datatype=_DATATYPES[kinds[0]],
        shape=(1,),
        optional=default is not MISSING,
        nullable=types.NoneType in members,
        kind=kinds[0],
        rule=rules[0],
    )


def _element(field: TensorField, tensor: NDArray[Any]) -> tuple[Any, str]:
    """Read the one element of a tensor: (value, "") or (None, the broken rule)."""
    dtype = _DTYPES[field.kind]
    if tensor.dtype != dtype or tensor.shape != field.shape:
        got = f"{tensor.dtype} {list(tensor.shape)}"
        want = f"{field.datatype} {list(field.shape)}"
        return None, f"{field.name} must be a tensor {want}, got {got}; try {want}"
    element = tensor[0]
    if field.kind is str:
        return _text(field, element)
    # The shortest decimal that names the float32: a client's 4.1 is 4.1 again, not 4.099999904632568.
    return (float(str(element)) if field.kind is float else field.kind(element)), ""


def _text(field: TensorField, element: Any) -> tuple[str | None, str]:
    raw = element.encode() if isinstance(element, str) else bytes(element)
    try:
        return raw.decode("utf-8"), ""
    except UnicodeDecodeError as error:
        got = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        return None, f"{field.name} must be UTF-8 text, got {got}; try encoding it as UTF-8"


def _problem(field: TensorField, value: Any) -> str:
    """Return the rule that a value breaks as a sentence, or an empty string."""
    name, kind = field.name, field.kind
    if value is None and field.nullable:
        return ""
    accepted: tuple[type[Any], ...] = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        return f"{name} must be of type {kind.__name__}, got {_short(value)}; try {_A[kind]}"
    if kind is str and (problem := _text_problem(name, value)):
        return problem
    if (kind is not int or _INT64.min <= value <= _INT64.max) and field.rule.accepts(value):
        return ""
    shown = field.rule.shown or _short
    return f"{name} must be {field.rule.must}, got {shown(value)}; try {field.rule.fix(value)}"


def _text_problem(name: str, value: str) -> str:
    if (at := value.find("\0")) >= 0:
        return f"{name} must be text without NUL, got one at character {at}; try removing it"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"{name} must be Unicode text, got half a surrogate pair at {error.start}; try removing it"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
