"""Error classes of Slipway, shared by the server and the clients.

Code that finds a broken rule raises an error. The error crosses Triton as the text of
:meth:`SlipwayError.to_wire` with the status code of its class, and the client turns it back into the same
class with :func:`from_wire`. The bracketed code survives Triton's own prefixes ("in ensemble 'x', ..."), HTTP
bodies and gRPC streams, none of which carry Slipway's status codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, TypeVar

E = TypeVar("E", bound=Exception)


class SlipwayError(Exception):
    """Base of all errors that Slipway reports to its users.

    Text: ``<where>: <field> must be <rule>, got <value>; try <fix>``.

    Attributes:
        code: Name of the error on the wire, unique in the tree.
        triton_code: Name of the constant of ``pb_utils.TritonError`` that carries the error.
        exit_code: Exit code of the ``slipway`` command.
    """

    code: ClassVar[str] = "UNKNOWN"
    triton_code: ClassVar[str] = "UNKNOWN"
    exit_code: ClassVar[int] = 1

    def to_wire(self) -> str:
        """Return the text that crosses Triton: the code in brackets, then the message."""
        return f"[{self.code}] {self}"


class InvalidRequest(SlipwayError):
    """The request breaks a rule; the server has not started any work for it."""

    code = "INVALID_ARGUMENT"
    triton_code = "INVALID_ARG"
    exit_code = 2


class NotReady(SlipwayError):
    """The server or a model cannot serve (yet); the caller may retry."""

    code = "UNAVAILABLE"
    triton_code = "UNAVAILABLE"


class Overloaded(SlipwayError):
    """The server refuses work because it has too much to do; the caller may retry later."""

    code = "RESOURCE_EXHAUSTED"
    triton_code = "UNAVAILABLE"


class SessionLost(SlipwayError):
    """The process that held the caller's session has ended; the caller may begin a new session."""

    code = "ABORTED"
    triton_code = "UNAVAILABLE"


class Cancelled(SlipwayError):
    """The caller cancelled the request."""

    code = "CANCELLED"
    triton_code = "CANCELLED"
    exit_code = 130


class DeadlineExceeded(SlipwayError):
    """The request reached its own time limit before its work was done."""

    # Triton's Python backend has no code for deadlines; Triton's core uses CANCELLED for both.
    code = "DEADLINE_EXCEEDED"
    triton_code = "CANCELLED"


class Unrecoverable(SlipwayError):
    """An internal failure that the caller cannot fix."""

    code = "INTERNAL"
    triton_code = "INTERNAL"


class Malformed(Unrecoverable):
    """An answer does not match its model's outputs: the sender is broken, hostile or of another version."""


_TREE: tuple[type[SlipwayError], ...] = (
    InvalidRequest,
    NotReady,
    Overloaded,
    SessionLost,
    Cancelled,
    DeadlineExceeded,
    Unrecoverable,
)
CODES = tuple(cls.code for cls in _TREE)
"""Names of all errors on the wire."""
_BY_CODE = {cls.code: cls for cls in _TREE}
# Classes for the errors that Triton itself raises, by gRPC or HTTP status.
_BY_STATUS = _BY_CODE | {
    "NOT_FOUND": NotReady,
    "UNIMPLEMENTED": InvalidRequest,
    "ALREADY_EXISTS": InvalidRequest,
    "400": InvalidRequest,
    "404": NotReady,
    "413": InvalidRequest,
    "499": Cancelled,
    "501": InvalidRequest,
    "503": NotReady,
    "504": DeadlineExceeded,
}
# Triton answers with these texts and the status "unavailable" when a queue is full or a request waited longer
# than its queue allows.
_REFUSED_BY_QUEUE = ("maximum queue size", "Request timeout expired")
RETRY_HINT = "try again in a few seconds, or send fewer requests at a time"
"""Hint in the error of a request that was refused because the queue is full."""
PROCESS_DIED = re.compile(r"Stub process '(?P<instance>[^']*)' is not healthy")
"""Triton's internal error for a request whose Python backend process died, and for all later requests until
a new process runs."""
_WIRE = re.compile(r"\[(" + "|".join(_BY_CODE) + r")\] ")


def from_wire(text: str, status: str | int | None = None) -> SlipwayError:
    """Rebuild an error from a server's answer.

    Args:
        text: Message of the server, with or without Triton's prefixes.
        status: Status of gRPC (``"StatusCode.NOT_FOUND"`` or ``"NOT_FOUND"``) or of HTTP, used for errors
            that Triton raised itself.

    Returns:
        An error of the class that :meth:`SlipwayError.to_wire` was called on. If the text has no code, the
        status decides the class; if the status is unknown too, it is :class:`Unrecoverable`.
    """
    if found := _WIRE.search(text):
        return _BY_CODE[found.group(1)](text[found.end() :].strip())
    if any(reason in text for reason in _REFUSED_BY_QUEUE):
        return Overloaded(f"{text.strip()}; {RETRY_HINT}")
    if died := PROCESS_DIED.search(text):
        return NotReady(
            f"{died['instance']}: the model's process ended before it answered; try again, the server"
            " restarts it"
        )
    name = str(status).removeprefix("StatusCode.") if status is not None else ""
    return _BY_STATUS.get(name, Unrecoverable)(text.strip())


def without_traceback(error: E) -> E:
    """Remove the traceback, context and cause from a caught error, and return the error.

    A frame that keeps an error forms a reference cycle, since the error's traceback refers to the frame.
    Everything that these frames hold, such as a request's tensors in shared memory, would then stay until
    Python collects cycles, which may be thousands of requests later.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def raise_all(where: str, problems: Sequence[str]) -> None:
    """Raise one :class:`InvalidRequest` that names every broken rule, if there is any.

    Args:
        where: Name of the model or command.
        problems: Sentences of the form ``<field> must be <rule>, got <value>; try <fix>``.
    """
    if problems:
        raise InvalidRequest(f"{where}: " + " | ".join(problems))
