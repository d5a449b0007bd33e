"""Conversion and validation of text in tensors: str in requests, UTF-8 bytes on the wire.

An error about invalid text says where in the text the fault is.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN_CHARACTERS = 40
_KEPT_CHARACTERS = 8192


def read(name: str, element: Any) -> tuple[str | None, str]:
    """Read an element as text; return (text, "") or (None, error sentence).

    Args:
        name: Name of the field, for the error sentence.
        element: Text as str or as UTF-8 bytes.
    """
    if isinstance(element, str):
        text = element
    elif isinstance(element, bytes):
        try:
            text = element.decode("utf-8")
        except UnicodeDecodeError as error:
            got = f"byte 0x{element[error.start]:02x} at offset {error.start}"
            return None, f"{name} must be UTF-8 text, got {got}; try encoding it as UTF-8"
    else:
        return None, f"{name} must be text, got {short(element)}; try a text"
    wrong = problem(name, text)
    return (None if wrong else text), wrong


def read_all(name: str, array: NDArray[Any]) -> tuple[NDArray[Any] | None, str]:
    """Read an array of texts; return (array with str elements, "") or (None, error sentence)."""
    found = np.empty(array.shape, np.object_)
    for index, element in np.ndenumerate(array):
        found[index], wrong = read(name, element)
        if wrong:
            return None, wrong
    return found, ""


def problem(name: str, value: str) -> str:
    """Return an error sentence if a text cannot be sent in a tensor, else ""."""
    if (at := value.find("\0")) >= 0:
        return f"{name} must be text without NUL, got one at character {at}; try removing it"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        got = f"an unpaired surrogate at character {error.start}"
        return f"{name} must be Unicode text, got {got}; try removing it"
    return ""


def to_bytes(element: Any) -> bytes:
    """Return an element as the bytes that a tensor carries."""
    return element.encode() if isinstance(element, str) else bytes(element)


def shortened(text: str) -> str:
    """Return a text for the log; a text of more than 16,384 characters loses its middle."""
    left_out = len(text) - 2 * _KEPT_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:_KEPT_CHARACTERS]}... ({left_out} characters left out) ...{text[-_KEPT_CHARACTERS:]}"


def short(value: Any) -> str:
    """Return a value's repr, shortened to 40 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def printable(value: str) -> str:
    """Return a text that is safe to print on a terminal: control and format characters become escapes.

    The author of a text could otherwise move the cursor, change the window's title or hide printed output.
    """
    return "".join(
        each
        if each.isprintable() or unicodedata.category(each) == "Zs"
        else each.encode("unicode_escape").decode()
        for each in value
    )
