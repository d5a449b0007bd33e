"""Text in tensors: str in requests, UTF-8 bytes on the way; what is none is refused by its place."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN_CHARACTERS = 40
_KEPT_CHARACTERS = 8192


def read(name: str, element: Any) -> tuple[str | None, str]:
    """Read an element: (the text, "") or (None, what is wrong with it).

    Args:
        name: of the field, for the sentence.
        element: a str, or bytes of UTF-8.
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
    """Read an array: (the same with str as its elements, "") or (None, what is wrong with one)."""
    found = np.empty(array.shape, np.object_)
    for index, element in np.ndenumerate(array):
        found[index], wrong = read(name, element)
        if wrong:
            return None, wrong
    return found, ""


def problem(name: str, value: str) -> str:
    """Return what a text has that cannot cross, as a sentence, or ""."""
    if (at := value.find("\0")) >= 0:
        return f"{name} must be text without NUL, got one at character {at}; try removing it"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"{name} must be Unicode text, got half a surrogate pair at {error.start}; try removing it"
    return ""


def to_bytes(element: Any) -> bytes:
    """Return an element as the bytes that cross."""
    return element.encode() if isinstance(element, str) else bytes(element)


def shortened(text: str) -> str:
    """Return a text for the log; one of more than 16,384 characters loses its middle."""
    left_out = len(text) - 2 * _KEPT_CHARACTERS
    if left_out <= 0:
        return text
    return f"{text[:_KEPT_CHARACTERS]}... ({left_out} characters left out) ...{text[-_KEPT_CHARACTERS:]}"


def short(value: Any) -> str:
    """Return a value's repr, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def printable(value: str) -> str:
    """Return a text that a terminal shows and does not obey: control and format characters as escapes.

    Whoever serves or sends a text could otherwise move the cursor, change the window's title or hide what is
    printed.
    """
    return "".join(
        each
        if each.isprintable() or unicodedata.category(each) == "Zs"
        else each.encode("unicode_escape").decode()
        for each in value
    )
