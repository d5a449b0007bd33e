"""The one error tree of Slipway, shared by the server side and the clients.

An error is raised where a rule is broken, crosses Triton as the text of :meth:`SlipwayError.to_wire`
with the status code of its class, and is turned back into the same class by :func:`from_wire` on the
client's side. The bracketed code survives Triton's own prefixes ("in ensemble 'x', ..."), HTTP bodies
and gRPC streams, none of which carry a status code of ours.
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
        code: the error's name on the wire, unique in the tree.
        triton_code: name of the constant of ``pb_utils.TritonError`` that carries it.
        exit_code: what the ``slipway`` command exits with.
    """

    code: ClassVar[str] = "UNKNOWN"
    triton_code: ClassVar[str] = "UNKNOWN"
    exit_code: ClassVar[int] = 1

    def to_wire(self) -> str:
        """Return the text that crosses Triton: the bracketed code, then the message."""
        return f"[{self.code}] {self}"


class InvalidRequest(SlipwayError):
    """The caller asked for something that the rules forbid; nothing was started."""

    code = "INVALID_ARGUMENT"
    triton_code = "INVALID_ARG"
    exit_code = 2


class NotReady(SlipwayError):
    """The server or a model is not (yet) able to serve; worth a retry."""

    code = "UNAVAILABLE"
    triton_code = "UNAVAILABLE"


class Overloaded(SlipwayError):
    """The server refuses work because it has enough; worth a retry later."""

    code = "RESOURCE_EXHAUSTED"
    triton_code = "UNAVAILABLE"


class SessionLost(SlipwayError):
    """What the server held for the caller is gone with the process that held it; worth beginning anew."""

    code = "ABORTED"
    triton_code = "UNAVAILABLE"


class Cancelled(SlipwayError):
    """The caller cancelled the request."""

    code = "CANCELLED"
    triton_code = "CANCELLED"
    exit_code = 130


class DeadlineExceeded(SlipwayError):
    """The request's own time limit ran out before its work did."""

    # Triton's Python backend has no deadline code; CANCELLED is what its core uses for both.
    code = "DEADLINE_EXCEEDED"
    triton_code = "CANCELLED"


class Unrecoverable(SlipwayError):
    """Something broke that the caller cannot mend."""

    code = "INTERNAL"
    triton_code = "INTERNAL"


class Malformed(Unrecoverable):
    """An answer is not what its model answers with: its sender is broken, hostile or of another version."""


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
"""The names of all errors on the wire."""
_BY_CODE = {cls.code: cls for cls in _TREE}
# Statuses of errors that Triton itself raises, under their gRPC and HTTP names.
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
# What Triton says, with the status of a server that is not ready, when a queue is full or a request waited
# longer than its queue allows; and what we add for those who do not try again by themselves.
_REFUSED_BY_QUEUE = ("maximum queue size", "Request timeout expired")
RETRY_HINT = "try again in a few seconds, or fewer requests at a time"
"""What a request is told that was refused since too many wait."""
PROCESS_DIED = re.compile(r"Stub process '(?P<instance>[^']*)' is not healthy")
"""What Triton's Python backend says, as an internal error, of a request whose process died with it, and of
those that come until there is another."""
_WIRE = re.compile(r"\[(" + "|".join(_BY_CODE) + r")\] ")


def from_wire(text: str, status: str | int | None = None) -> SlipwayError:
    """Rebuild an error from what a server answered.

    Args:
        text: the server's message, with or without Triton's prefixes.
        status: gRPC status (``"StatusCode.NOT_FOUND"`` or ``"NOT_FOUND"``) or HTTP status, used for
            errors that Triton raised itself.

    Returns:
        An instance of the class that :meth:`SlipwayError.to_wire` was called on; by the status where
        the text has no code; :class:`Unrecoverable` where neither tells.
    """
    if found := _WIRE.search(text):
        return _BY_CODE[found.group(1)](text[found.end() :].strip())
    if any(reason in text for reason in _REFUSED_BY_QUEUE):
        return Overloaded(f"{text.strip()}; {RETRY_HINT}")
    if died := PROCESS_DIED.search(text):
        return NotReady(
            f"{died['instance']}: the model's process ended before it answered; try again, it is started anew"
        )
    name = str(status).removeprefix("StatusCode.") if status is not None else ""
    return _BY_STATUS.get(name, Unrecoverable)(text.strip())


def without_traceback(error: E) -> E:
    """Return an error that was caught, without its traceback and the errors that led to it.

    An error that is kept for later is held by the frame that keeps it, which its traceback leads back to: a
    cycle. Whatever these frames hold, a request's tensors in shared memory too, would stay until Python looks
    for cycles, which may be thousands of requests later.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def raise_all(where: str, problems: Sequence[str]) -> None:
    """Raise one :class:`InvalidRequest` that names every broken rule, if there is any.

    Args:
        where: the model or command that was asked.
        problems: ``<field> must be <rule>, got <value>; try <fix>`` each.
    """
    if problems:
        raise InvalidRequest(f"{where}: " + " | ".join(problems))
