"""Values of JSON messages as values of request classes.

Numbers and texts are taken as they are. Bytes and pictures are base64 text, pictures also a data URL. An
array is a nested list, one row in place of rows, or an object that names columns of the last axis:
``{"forward": 1}``, or ``{"forward": [0, 1, 1]}`` with a value for each row. Columns that are not named are 0.
Sizes are bounded by the size of the message; rules of the fields are checked by the request class.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.protocol.fields import Array, Field, Image, fields_of
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.texts import short

_A_PICTURE = "base64 text or a data URL of a PNG, JPEG or WebP file"


def parse(
    kind: type[Request], values: Mapping[str, Any], where: str, *, set_here: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of a request's fields from JSON.

    Args:
        kind: Request class.
        values: JSON values by field name.
        where: Name of the message, for errors.
        set_here: Names of fields that the gateway sets, and that a caller must leave out.

    Raises:
        InvalidRequest: A field is unknown or must be left out, or a value has another form; all are named.
    """
    known = {field.name: field for field in fields_of(kind)}
    problems, found = [], {}
    for name, value in values.items():
        field = known.get(name)
        if field is None or name in set_here:
            names = ", ".join(sorted(known.keys() - set(set_here)))
            problems.append(f"{short(name)} must be left out, got {short(value)}; try one of {names}")
            continue
        try:
            found[name] = _value(field, value)
        except ValueError as error:
            problems.append(f"{name} must be {error}")
    raise_all(where, problems)
    return found


def neutral_values(kind: type[Request]) -> dict[str, Any]:
    """Return zeros for the arrays of a turn that have no default: one row, or an array of the fixed sizes."""
    return {
        field.name: np.zeros(
            [1 if isinstance(axis, str) else axis for axis in field.rule.shape], field.rule.numpy
        )
        for field in fields_of(kind)
        if isinstance(field.rule, Array) and not field.optional and field.rule.dtype != "text"
    }


def turn_values(kind: type[Request], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a turn, with zeros for arrays that are not given.

    An array of one row is repeated if another array has more rows of the same axis, since one row stands for
    all rows.

    Args:
        kind: Class of the turn.
        values: Values from :func:`parse`.
    """
    found = neutral_values(kind) | dict(values)
    axes = {
        field.name: field.rule.shape[0]
        for field in fields_of(kind)
        if isinstance(field.rule, Array)
        and isinstance(found.get(field.name), np.ndarray)
        and field.rule.shape
    }
    rows: dict[Any, int] = {}
    for name, axis in axes.items():
        rows[axis] = max(rows.get(axis, 1), len(found[name]) if found[name].ndim else 1)
    for name, axis in axes.items():
        if isinstance(axis, str) and found[name].shape[:1] == (1,):
            found[name] = np.repeat(found[name], rows[axis], axis=0)
    return found


def picture_field(kind: type[Request]) -> str | None:
    """Return the name of the first field that is a picture; None if there is none."""
    return next((field.name for field in fields_of(kind) if isinstance(field.rule, Image)), None)


def _value(field: Field, value: Any) -> Any:
    """Convert a JSON value; raise ValueError with the rest of a sentence after "must be"."""
    if value is None and field.nullable:
        return None
    if isinstance(field.rule, Array):
        return _array(field.rule, value)
    if isinstance(field.rule, Image):
        return decode_picture(value)
    if field.kind is bytes:
        return _bytes(value, "base64 text")
    if field.kind is float and type(value) is int:
        return float(value) if abs(value) < 2**63 else value
    return value


def decode_picture(value: Any) -> bytes:
    """Return the bytes of a picture from base64 text or a data URL.

    Raises:
        ValueError: The value is neither; the message completes "must be".
    """
    if isinstance(value, Mapping) and set(value) == {"image_url"}:
        value = value["image_url"]
    if isinstance(value, str) and value.startswith("data:"):
        head, _, value = value.partition(",")
        if not head.endswith(";base64"):
            raise ValueError(f"{_A_PICTURE}, got a data URL without base64")
    return _bytes(value, _A_PICTURE)


def _bytes(value: Any, rule: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"{rule}, got {short(value)}")  # noqa: TRY004 - the value is a caller's
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{rule}, got {short(value)}") from None


def _array(rule: Array, value: Any) -> NDArray[Any]:
    if isinstance(value, Mapping):
        return _named_columns(rule, value)
    if not isinstance(value, list):
        raise ValueError(f"a list{_or_columns(rule)}, got {short(value)}")  # noqa: TRY004 - a caller's
    if rule.dtype == "text":
        return np.array(value, np.object_)
    array = _numbers(value, rule)
    # One row stands for all rows.
    return array[None] if array.ndim == len(rule.shape) - 1 else array


def _named_columns(rule: Array, value: Mapping[str, Any]) -> NDArray[Any]:
    unknown = [name for name in value if name not in rule.columns]
    if unknown or not rule.columns or len(rule.shape) != 2:
        got = ", ".join(map(short, unknown or value)) or "nothing"
        raise ValueError(f"a list{_or_columns(rule)}, got {got}")
    columns = {name: np.atleast_1d(_numbers(each, rule)) for name, each in value.items()}
    sizes = {column.size for column in columns.values()} | {1}
    if any(column.ndim != 1 for column in columns.values()) or len(sizes - {1}) > 1:
        raise ValueError(f"columns of one length, got {short(dict(value))}")
    array = np.zeros((max(sizes), len(rule.columns)), rule.numpy)
    for name, column in columns.items():
        array[:, rule.columns.index(name)] = column
    return array


def _numbers(value: Any, rule: Array) -> NDArray[Any]:
    wanted = np.dtype(rule.numpy)
    try:
        array = np.array(value)
    except (ValueError, OverflowError, TypeError):
        array = np.array(None)
    is_number = array.dtype.kind in "iub" or (array.dtype.kind == "f" and wanted.kind == "f")
    if is_number and wanted.kind in "iu" and array.size:
        bounds = np.iinfo(wanted)
        is_number = bool(array.min() >= bounds.min and array.max() <= bounds.max)
    if not is_number:
        raise ValueError(f"numbers of type {rule.dtype} in a list of equal rows, got {short(value)}")
    with np.errstate(over="ignore"):
        return array.astype(wanted)


def _or_columns(rule: Array) -> str:
    return f" or an object with {', '.join(rule.columns)}" if rule.columns else " of rows"


def build(kind: type[Request], values: Mapping[str, Any], where: str) -> Request:
    """Build a request from values.

    Raises:
        InvalidRequest: A field is missing or breaks its rule; all such fields are named.
    """
    missing = [
        f"{field.name} must be given, got nothing; try giving {field.rule.help}"
        for field in fields_of(kind)
        if not field.optional and field.name not in values
    ]
    raise_all(where, missing)
    try:
        return kind(**values)
    except InvalidRequest as error:
        prefix = f"{kind.model}: "
        raise InvalidRequest(f"{where}: {str(error).removeprefix(prefix)}") from None
