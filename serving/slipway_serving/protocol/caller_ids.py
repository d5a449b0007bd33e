"""Rules for the ids that callers choose: ids of requests and ids of sessions.

The server writes these ids to its log and uses them as keys, so their length must be limited. The adapter and
the onnxruntime backend check them before any work; the client checks a session's id before it sends it.
"""

from __future__ import annotations

from typing import Any

LONGEST_BYTES = 128
"""Limit of Triton 2.51 for the text of a correlation ID, its protocol field for the session id.

Slipway applies the limit to request ids too.
"""
_LARGEST_NUMBER = 2**64 - 1
_SHOWN_CHARACTERS = 24


def request_id_problem(request_id: str) -> str:
    """Return an error message if a request id is too long, or an empty string."""
    if len(request_id.encode(errors="replace")) <= LONGEST_BYTES:
        return ""
    return f"request id must be at most {LONGEST_BYTES} bytes, got {shortened_id(request_id)!r}; try a UUID"


def session_id_problem(session_id: Any) -> str:
    """Return an error message if a value cannot be a session id, or an empty string."""
    if isinstance(session_id, str):
        fits = 1 <= len(session_id.encode(errors="replace")) <= LONGEST_BYTES
    else:
        fits = type(session_id) is int and 1 <= session_id <= _LARGEST_NUMBER
    if fits:
        return ""
    return (
        f"session id must be a text of 1 to {LONGEST_BYTES} bytes or a whole number of 1 to"
        f" {_LARGEST_NUMBER}, got {shortened_id(session_id)!r}; try a UUID"
    )


def shortened_id(given: Any) -> Any:
    """Return an id for a message or a log line, with a long text cut to its beginning."""
    text = given if isinstance(given, str) else repr(given)
    if len(text) <= LONGEST_BYTES:
        return given
    return f"{text[:_SHOWN_CHARACTERS]}... ({len(text)} characters)"
