"""From the fields of a request to the options of its command, and from what was given back to values.

A scalar is an option with the field's own help and default, a text without a default an argument, a picture
and an array the path of a file. Height and width are one option, `--size`. What a session's turns bring comes
from files with an axis more than the field: one entry for each turn.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from slipway_client.pictures import CONVERTED, read_picture
from slipway_client.progress import Say, silent
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.fields import Array, Field, Image, Rule, fields_of
from slipway_serving.protocol.requests import Request

_SIZE = re.compile(r"(\d+)[x*](\d+)", re.IGNORECASE)
_SIZE_FORM = "WIDTHxHEIGHT"
_SIDES = ("height", "width")
Given = Mapping[str, Any]


def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a parameter of a command's function."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters(request: type[Request]) -> list[inspect.Parameter]:
    """Return a parameter for each field of a request, and of the turns of the session that it opens."""
    found = [_parameter(field) for field in _offered(request) if not _is_side(request, field)]
    if _is_sized(request):
        found.append(_size(request))
    if request.turn is not None:
        found += [_parameter(field, in_turn=True) for field in _offered(request.turn)]
        help_text = "Number of turns; by default as many as the files have."
        found.append(option("turns", Annotated[int, typer.Option("--turns", min=0, help=help_text)], 0))
    return found


def values(request: type[Request], given: Given, say: Say = silent) -> dict[str, Any]:
    """Return the values of a request's fields as they were given; what was left out is left to its default.

    Args:
        request: Request whose fields are options.
        given: Values of the options by their names.
        say: Callback that receives a sentence about every change of a picture.

    Raises:
        InvalidRequest: a file cannot be read, or --size is no size.
    """
    found = _values([field for field in _offered(request) if not _is_side(request, field)], given, say)
    if _is_sized(request) and given["size"] is not None:
        found["width"], found["height"] = parse_size(given["size"])
    return found


def turns(request: type[Request], given: Given, say: Say = silent) -> Iterator[Request]:
    """Yield the content of each turn of a session.

    Args:
        request: Request that opens the session.
        given: Values of the options by their names.
        say: Callback that receives a sentence about every change of a picture.

    Raises:
        InvalidRequest: a file cannot be read, files differ in their turns, or none says how many there are.
    """
    turn = request.turn
    if turn is None:
        return
    content = _values(_offered(turn), given, say)
    arrays = {field.name for field in _offered(turn) if isinstance(field.rule, Array)} & set(content)
    counts = {len(content[name]) if content[name].ndim else 0 for name in arrays}
    asked = given["turns"] or max(counts, default=0)
    if asked < 1 or any(count < asked for count in counts):
        raise InvalidRequest(
            f"{request.model}: turns must be 1 or more and in every file, got {asked} and files of"
            f" {sorted(counts) or 'none'}; try --turns"
        )
    for index in range(asked):
        yield turn(**{name: value[index] if name in arrays else value for name, value in content.items()})


def parse_size(text: str) -> tuple[int, int]:
    """Parse "WIDTHxHEIGHT" in pixels.

    Raises:
        InvalidRequest: the text is not of that form.
    """
    if not (found := _SIZE.fullmatch(text.strip())):
        raise InvalidRequest(f"generate: --size must be WIDTHxHEIGHT in pixels, got {text!r}; try 832x480")
    return int(found[1]), int(found[2])


def _offered(request: type[Request]) -> list[Field]:
    return [field for field in fields_of(request) if field.flag is not None]


def _is_sized(request: type[Request]) -> bool:
    return {field.name for field in _offered(request)}.issuperset(_SIDES)


def _size(request: type[Request]) -> inspect.Parameter:
    """Return the parameter of the size, which may be left out where the server chooses one."""
    height, width = (next(each for each in fields_of(request) if each.name == side) for side in _SIDES)
    help_text = "Width and height, pixels."
    if height.default is None:
        # Both sides say the same of it.
        chosen = height.rule.default if isinstance(height.rule, Rule) else ""
        told = typer.Option("--size", help=f"{help_text[:-1]}; by default {chosen}.", metavar=_SIZE_FORM)
        return option("size", Annotated[str | None, told], None)
    told = typer.Option("--size", help=help_text, metavar=_SIZE_FORM)
    return option("size", Annotated[str, told], f"{width.default}x{height.default}")


def _is_side(request: type[Request], field: Field) -> bool:
    return field.name in _SIDES and _is_sized(request)


def _parameter(field: Field, *, in_turn: bool = False) -> inspect.Parameter:
    rule, flag = field.rule, f"--{_dashed(field)}"
    text = rule.help[0].upper() + rule.help[1:]
    empty = inspect.Parameter.empty
    if isinstance(rule, Array):
        shape = ", ".join(map(str, ("turns", *rule.shape) if in_turn else rule.shape))
        told = typer.Option(flag, help=f"{text}; {rule.dtype} [{shape}].", metavar="FILE.npy")
    elif isinstance(rule, Image):
        told = typer.Option(flag, help=f"{text}; {rule.must}. {CONVERTED}", metavar="FILE")
    elif field.kind is str and not field.optional:
        told = typer.Argument(help=f"{text}.", metavar=field.name.upper())
    else:
        must = f", {rule.must}" if rule.must not in text else ""
        note = f"; by default {rule.default}" if rule.default else ""
        told = typer.Option(flag, help=f"{text}{must}{note}.")
    kind: Any = Path if isinstance(rule, Array | Image) else field.kind
    if not field.optional:
        return option(field.name, Annotated[kind, told], empty)
    default = None if kind is Path else field.default
    return option(field.name, Annotated[kind if default is not None else kind | None, told], default)


def _dashed(field: Field) -> str:
    return (field.flag or field.name).replace("_", "-")


def _values(fields: list[Field], given: Given, say: Say) -> dict[str, Any]:
    found = {field.name: _value(field, given[field.name], say) for field in fields}
    return {name: value for name, value in found.items() if value is not None}


def _value(field: Field, given: Any, say: Say) -> Any:
    """Return a field's value: what a file holds, or what was typed."""
    if given is None or not isinstance(field.rule, Array | Image):
        return given
    if isinstance(field.rule, Image):
        return read_picture(given, field.rule, say)
    try:
        loaded = np.load(given, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"generate: --{_dashed(field)} must be a file that can be read, got {given} ({error})"
        ) from None
    return loaded.astype(np.object_) if field.rule.dtype == "text" else loaded
