"""Errors of the HTTP API: one form of answer for every status, and the status of each class of error.

Every error is answered as ``{"error": {"message", "type", "param", "code"}}``, the form that clients of the
video API read. Routes raise :class:`ApiError` where they know status and code, and everything else raises the
errors of :mod:`slipway_serving.protocol.errors`, whose classes have a status here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from slipway_serving.protocol.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    SlipwayError,
)

FINAL_HEADER = "x-should-retry"
"""Header that tells OpenAI's clients whether to send a refused request again."""
_RETRY_AFTER_S = 5.0
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    416: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "unavailable_error",
    504: "timeout_error",
}
_STATUSES: tuple[tuple[type[SlipwayError], int, str], ...] = (
    (InvalidRequest, 400, "invalid_value"),
    (NotReady, 503, "unavailable"),
    (Overloaded, 429, "queue_full"),
    (DeadlineExceeded, 504, "deadline_exceeded"),
    (Cancelled, 499, "cancelled"),
)
# "wan_t2v: height must be …": the field that a message is about.
_FIELD = re.compile(r"(?:^|: |\| )([a-z][a-z0-9_]*) must ")


class ApiError(SlipwayError):
    """Error with a status, a code and a field of its own.

    Args:
        message: Sentence for people that names field, rule and value.
        status: HTTP status.
        code: Name of the error for programs.
        param: Name of the field that the error is about.
        retry_after_s: Time after which the request may be sent again, in seconds.
        final: True if the request can never succeed when it is sent again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        param: str | None = None,
        retry_after_s: float | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.code_name, self.param = status, code, param
        self.retry_after_s, self.final = retry_after_s, final


@dataclass(frozen=True)
class Answer:
    """Answer to a request that failed.

    Attributes:
        status: HTTP status.
        content: JSON document.
        headers: Headers of the answer.
    """

    status: int
    content: dict[str, Any]
    headers: dict[str, str]


def not_found(what: str, name: str) -> ApiError:
    """Return the error for something that does not exist or belongs to another key."""
    return ApiError(f"{what} {name!r} does not exist", status=404, code=f"{what}_not_found", final=True)


def conflict(message: str, code: str) -> ApiError:
    """Return the error for a request that the state of a job does not allow."""
    return ApiError(message, status=409, code=code, final=True)


def envelope(status: int, message: str, code: str, param: str | None = None) -> dict[str, Any]:
    """Return the JSON document of an error.

    Args:
        status: HTTP status; it determines the type.
        message: Sentence for people.
        code: Name of the error for programs.
        param: Name of the field that the error is about.
    """
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def answer_to(error: SlipwayError) -> Answer:
    """Return the answer to a request that ended with an error."""
    if isinstance(error, ApiError):
        headers = {FINAL_HEADER: "false"} if error.final else {}
        if error.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after_s))
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        document = envelope(error.status, str(error), error.code_name, error.param)
        return Answer(error.status, document, headers)
    found = ((status, code) for kind, status, code in _STATUSES if isinstance(error, kind))
    status, code = next(found, (500, "internal"))
    headers = {"retry-after": str(math.ceil(_RETRY_AFTER_S))} if status in {429, 503} else {}
    return Answer(status, envelope(status, str(error), code, field_of(str(error))), headers)


def field_of(message: str) -> str | None:
    """Return the first field that the message of an error names, or None."""
    found = _FIELD.search(message)
    return found[1] if found else None
