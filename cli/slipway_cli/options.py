"""Command options from the fields of a request, and the values of the fields from the options.

A scalar field becomes an option with the field's help and default, a text without a default an argument, a
picture or an array the path of a file. Height and width become one option, `--size`. The turns of a session
come from files whose arrays have one more axis than the field: one entry for each turn.
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
OptionValues = Mapping[str, Any]


def option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a parameter of a command's function."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters(request: type[Request]) -> list[inspect.Parameter]:
    """Return a parameter for each field of a request, and of the turns of the session that it opens."""
    found = [_parameter(field) for field in _option_fields(request) if not _is_side(request, field)]
    if _has_size(request):
        found.append(_size_option(request))
    if request.turn is not None:
        found += [_parameter(field, in_turn=True) for field in _option_fields(request.turn)]
        help_text = "Number of turns; by default, or with 0, one turn for each entry of the files."
        annotation = typer.Option("--turns", min=0, help=help_text, show_default=False)
        found.append(option("turns", Annotated[int, annotation], 0))
    return found


def values(request: type[Request], arguments: OptionValues, say: Say = silent) -> dict[str, Any]:
    """Return the values of a request's fields from its options, without fields that were left out.

    Args:
        request: Request whose fields are options.
        arguments: Values of the options by their names.
        say: Callback that receives a sentence about every change of a picture.

    Raises:
        InvalidRequest: A file cannot be read, or --size is malformed.
    """
    found = _values(
        [field for field in _option_fields(request) if not _is_side(request, field)], arguments, say
    )
    if _has_size(request) and arguments["size"] is not None:
        found["width"], found["height"] = parse_size(arguments["size"])
    return found


def turns(request: type[Request], arguments: OptionValues, say: Say = silent) -> Iterator[Request]:
    """Yield the content of each turn of a session.

    Args:
        request: Request that opens the session.
        arguments: Values of the options by their names.
        say: Callback that receives a sentence about every change of a picture.

    Raises:
        InvalidRequest: A file cannot be read, a file has too few turns, or the number of turns is unknown.
    """
    turn = request.turn
    if turn is None:
        return
    content = _values(_option_fields(turn), arguments, say)
    arrays = {field.name for field in _option_fields(turn) if isinstance(field.rule, Array)} & set(content)
    lengths = {len(content[name]) if content[name].ndim else 0 for name in arrays}
    count = arguments["turns"] or max(lengths, default=0)
    if count < 1 or any(length < count for length in lengths):
        raise InvalidRequest(
            f"{request.model}: turns must be 1 or more and at most the entries of each file, got {count}"
            " turns"
            f" and files of {sorted(lengths) or 'no'} entries; try --turns"
        )
    for index in range(count):
        yield turn(**{name: value[index] if name in arrays else value for name, value in content.items()})


def parse_size(text: str) -> tuple[int, int]:
    """Parse "WIDTHxHEIGHT" in pixels.

    Raises:
        InvalidRequest: The text does not have that form.
    """
    if not (found := _SIZE.fullmatch(text.strip())):
        raise InvalidRequest(f"generate: --size must be WIDTHxHEIGHT in pixels, got {text!r}; try 832x480")
    return int(found[1]), int(found[2])


def _option_fields(request: type[Request]) -> list[Field]:
    return [field for field in fields_of(request) if field.flag is not None]


def _has_size(request: type[Request]) -> bool:
    return {field.name for field in _option_fields(request)}.issuperset(_SIDES)


def _size_option(request: type[Request]) -> inspect.Parameter:
    """Return the parameter of the size, which is optional if the server can choose one."""
    height, width = (next(each for each in fields_of(request) if each.name == side) for side in _SIDES)
    help_text = "Width and height, in pixels."
    if height.default is None:
        # Height and width have the same default.
        chosen = height.rule.default if isinstance(height.rule, Rule) else ""
        annotation = typer.Option(
            "--size", help=f"{help_text[:-1]}; by default, {chosen}.", metavar=_SIZE_FORM
        )
        return option("size", Annotated[str | None, annotation], None)
    annotation = typer.Option("--size", help=help_text, metavar=_SIZE_FORM)
    return option("size", Annotated[str, annotation], f"{width.default}x{height.default}")


def _is_side(request: type[Request], field: Field) -> bool:
    return field.name in _SIDES and _has_size(request)


def _parameter(field: Field, *, in_turn: bool = False) -> inspect.Parameter:
    """Return the command parameter for one field of a request or of a session's turn."""
    rule, flag = field.rule, f"--{_dashed(field)}"
    text = rule.help[0].upper() + rule.help[1:]
    empty = inspect.Parameter.empty
    if isinstance(rule, Array):
        shape = ", ".join(map(str, ("turns", *rule.shape) if in_turn else rule.shape))
        annotation = typer.Option(flag, help=f"{text}; {rule.dtype} [{shape}].", metavar="FILE.npy")
    elif isinstance(rule, Image):
        annotation = typer.Option(flag, help=f"{text}; {rule.must}. {CONVERTED}", metavar="FILE")
    elif field.kind is str and not field.optional:
        annotation = typer.Argument(help=f"{text}.", metavar=field.name.upper())
    else:
        must = f", {rule.must}" if rule.must not in text else ""
        note = f"; by default, {rule.default}" if rule.default else ""
        annotation = typer.Option(flag, help=f"{text}{must}{note}.")
    kind: Any = Path if isinstance(rule, Array | Image) else field.kind
    if not field.optional:
        return option(field.name, Annotated[kind, annotation], empty)
    default = None if kind is Path else field.default
    return option(field.name, Annotated[kind if default is not None else kind | None, annotation], default)


def _dashed(field: Field) -> str:
    return (field.flag or field.name).replace("_", "-")


def _values(fields: list[Field], arguments: OptionValues, say: Say) -> dict[str, Any]:
    found = {field.name: _value(field, arguments[field.name], say) for field in fields}
    return {name: value for name, value in found.items() if value is not None}


def _value(field: Field, argument: Any, say: Say) -> Any:
    """Return a field's value: the content of a file, or the argument itself."""
    if argument is None or not isinstance(field.rule, Array | Image):
        return argument
    if isinstance(field.rule, Image):
        return read_picture(argument, field.rule, say)
    try:
        loaded = np.load(argument, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"generate: --{_dashed(field)} must be a readable .npy file, got {argument} ({error})"
        ) from None
    return loaded.astype(np.object_) if field.rule.dtype == "text" else loaded
