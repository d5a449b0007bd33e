"""Fields of a creation request as callers send them: flat, nested in a form, or as JSON text, as one mapping.

The video APIs disagree about the place of a field. :func:`flatten` accepts all of them: ``steps=8``,
``extra_body[steps]=8``, ``extra_params={"steps": 8}`` and a JSON document. A field that comes twice with
different values is refused. :func:`convert` then turns the text of a form, or a JSON value, into the type of
the field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from slipway_serving.protocol.errors import raise_all
from slipway_serving.protocol.fields import Array, Field
from slipway_serving.protocol.texts import short

NESTED = ("extra_params", "extra_body")
"""Names of fields that contain other fields: nested in a form, or as an object, or as JSON text of one."""
_MOST_DIGITS = 400
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_FORM_NAME = re.compile(r"([A-Za-z0-9_.-]+)((?:\[[^\[\]]*\])*)")
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def nested_form(items: Iterable[tuple[str, Any]], where: str) -> dict[str, Any]:
    """Return the fields of a form, whose names may have the form ``a[b][c]``, as nested objects.

    Args:
        items: Names and values in the order of the form.
        where: Name of the route, for messages.

    Raises:
        InvalidRequest: A name has no such form, or one field is both a value and an object, or comes twice.
    """
    found: dict[str, Any] = {}
    problems = []
    for name, value in items:
        if not (match := _FORM_NAME.fullmatch(name)):
            problems.append(f"{short(name)} must be the name of a field, got that; try a name such as prompt")
            continue
        path = [match[1], *_BRACKETS.findall(match[2])]
        problem = _put(found, [part for part in path if part], value)
        if problem:
            problems.append(problem)
    raise_all(where, problems)
    return found


def _put(found: dict[str, Any], path: list[str], value: Any) -> str:
    """Put a value at its place in nested objects; return a sentence about a conflict, or an empty string."""
    place = found
    for part in path[:-1]:
        below = place.setdefault(part, {})
        if not isinstance(below, dict):
            return f"{path[0]} must be one value or one object, got both; try one of them"
        place = below
    if path[-1] in place and place[path[-1]] != value:
        return (
            f"{path[-1]} must be given once, got {short(place[path[-1]])} and {short(value)}; try one of them"
        )
    place[path[-1]] = value
    return ""


def flatten(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a document with those that are nested in it.

    Args:
        document: Fields of a form or of a JSON document.
        where: Name of the route, for messages.

    Raises:
        InvalidRequest: A nested field is no object, or a field comes twice with different values.
    """
    found: dict[str, Any] = {}
    problems: list[str] = []
    pending = [dict(document)]
    while pending:
        for name, value in pending.pop(0).items():
            if name not in NESTED:
                if name in found and found[name] != value:
                    problems.append(
                        f"{name} must be given once, got {short(found[name])} and {short(value)};"
                        " try one of them"
                    )
                found.setdefault(name, value)
                continue
            inner = _parse_object(value)
            if inner is None:
                problems.append(
                    f"{name} must be an object or the JSON text of one, got {short(value)};"
                    ' try {"steps": 8}'
                )
            else:
                pending.append(inner)
    raise_all(where, problems)
    return found


def _parse_object(value: Any) -> dict[str, Any] | None:
    """Return an object, or the one that a JSON text contains; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) and all(isinstance(name, str) for name in value) else None


def convert(field: Field, value: Any) -> tuple[Any, str]:
    """Convert a value of a form or of a JSON document to the type of a field.

    Returns:
        The value and an empty string, or None and a sentence about the value.
    """
    if isinstance(field.rule, Array):
        return _convert_array(field, field.rule, value)
    if field.nullable and value in (None, ""):
        return None, ""
    converted = _CONVERSIONS[field.kind](value) if field.kind in _CONVERSIONS else value
    if converted is None:
        return None, f"{field.name} must be {_A[field.kind]}, got {short(value)}; try {_EXAMPLES[field.kind]}"
    return converted, ""


def _convert_array(field: Field, rule: Array, value: Any) -> tuple[Any, str]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
        return np.array(parsed, rule.numpy), ""
    except (TypeError, ValueError, OverflowError, RecursionError):
        shape = ", ".join(map(str, rule.shape))
        return None, f"{field.name} must be {rule.dtype} [{shape}] as nested lists, got {short(value)}"


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and len(value) <= _MOST_DIGITS:
        try:
            return int(value)
        except ValueError:
            value = _number(value)
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value.is_integer() else None
    return value if isinstance(value, int) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower() if isinstance(value, str | int) else ""
    return True if text in _TRUE else False if text in _FALSE else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_CONVERSIONS: Mapping[type[Any], Any] = {int: _integer, float: _number, bool: _truth, str: _text}
_A: Mapping[type[Any], str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_EXAMPLES: Mapping[type[Any], str] = {int: "8", float: "4.0", bool: "true", str: "a text in quotes"}
