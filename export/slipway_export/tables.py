"""Tables of fields in the documents, generated from the declarations that server and client validate with.

A page marks the place of a table and its class with ``<!-- fields: package.module:Class -->``. ``python -m
slipway_export.tables PAGE ...`` (``make docs``) rewrites what follows, up to ``<!-- end of fields -->``. A
test checks the tables of every page that has a marker, so a page needs no entry in any list.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event
from slipway_serving.protocol.fields import Array, Field, Image, fields_of
from slipway_serving.protocol.requests import Request

END = "<!-- end of fields -->"
_MARKER = re.compile(r"<!-- fields: (\S+) -->\n(.*?)^" + re.escape(END) + "$", re.DOTALL | re.MULTILINE)
_BEGIN = "<!-- fields:"


def table(described: type[Request] | type[Event]) -> str:
    """Return the table of a request's or an event's fields as Markdown."""
    is_request = issubclass(described, Request)
    titles = ["field", "type, shape", *(["rule", "default"] if is_request else []), "meaning"]
    rows = [
        [
            f"`{each.name}`",
            _type(each),
            *([each.rule.must, _default(each)] if is_request else []),
            each.rule.help,
        ]
        for each in fields_of(described)
    ]
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def filled(text: str, where: str) -> str:
    """Return a page's text with its tables regenerated.

    Args:
        text: Text of the page.
        where: Name of the page in messages.

    Raises:
        InvalidRequest: A marker names no class with fields, or has no end.
    """
    filled_text, count = _MARKER.subn(
        lambda found: f"{_BEGIN} {found[1]} -->\n{_table_of(found[1], where)}{END}", text
    )
    if count != text.count(_BEGIN):
        raise InvalidRequest(
            f"{where}: each marker {_BEGIN} must be followed by a line {END}, got one without"
        )
    return filled_text


def write(pages: Sequence[Path]) -> list[Path]:
    """Regenerate the tables of pages; return the pages that changed."""
    changed = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        if (new_text := filled(text, str(page))) != text:
            page.write_text(new_text, encoding="utf-8")
            changed.append(page)
    return changed


def _table_of(name: str, where: str) -> str:
    """Return the table of a named class."""
    module, _, attribute = name.partition(":")
    try:
        described = getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        described, name = None, f"{name} ({error})"
    if not isinstance(described, type) or not issubclass(described, Request | Event):
        raise InvalidRequest(
            f"{where}: fields must name a request or event as package.module:Class, got {name}"
        )
    return table(described)


def _type(each: Field) -> str:
    if isinstance(each.rule, Array):
        return f"{each.datatype} [{', '.join(map(str, each.rule.shape))}]"
    if isinstance(each.rule, Image):
        return f"{each.datatype}: a file, or base64 text of it"
    return each.datatype if each.shape == (1,) else f"{each.datatype} {list(each.shape)}"


def _default(each: Field) -> str:
    stated = "" if isinstance(each.rule, Image) else each.rule.default
    if stated or not each.optional:
        return stated or "required"
    shown: dict[Any, str] = {None: "none", "": "empty", True: "true", False: "false"}
    if each.default is None or isinstance(each.default, bool) or each.default == "":
        return shown[each.default]
    return f"`{each.default}`" if isinstance(each.default, str) else str(each.default)


if __name__ == "__main__":
    for written in write([Path(argument) for argument in sys.argv[1:]]):
        print(written)
