"""Mapping of gRPC errors to Slipway errors: what the server reported, or why it was unreachable."""

from __future__ import annotations

from typing import Any

import grpc

from slipway_client.grpc import messages
from slipway_client.retry import Deadline, UnknownModel
from slipway_client.unreachable import not_triton, silent, unreachable
from slipway_serving.protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    Malformed,
    NotReady,
    SlipwayError,
)
from slipway_serving.protocol.proxies import Proxy

# gRPC reports this when the server speaks HTTP/1.
_OTHER_SERVER = ("http1", "http/1")
# gRPC reports this for an HTTP/2 answer that is not gRPC, such as that of a gateway without a server.
_GATEWAY = "http2 header with status"
# gRPC reports this for a message that is not one of Triton's.
_UNREADABLE = "deserializing"


def call_error(
    url: str, error: grpc.RpcError, deadline: Deadline, proxy: Proxy | None = None
) -> SlipwayError:
    """Return the Slipway error for a call that failed."""
    mapped = _error(url, error, proxy)
    local = isinstance(mapped, DeadlineExceeded) and mapped.args[0] == "Deadline Exceeded"
    return deadline.exceeded() if local else mapped


def ask_error(url: str, error: Any, limit_s: float, proxy: Proxy | None = None) -> SlipwayError:
    """Return the Slipway error for a health or metadata call that failed."""
    mapped = _error(url, error, proxy)
    if isinstance(mapped, DeadlineExceeded):
        return silent(url, limit_s, proxy)
    if isinstance(mapped, InvalidRequest):  # UNIMPLEMENTED: every Triton implements these calls
        return not_triton(url, "gRPC", proxy)
    return mapped


def _error(url: str, error: Any, proxy: Proxy | None) -> SlipwayError:
    status, text = error.code().name, error.details() or ""
    mapped = messages.said(text, status)
    if isinstance(mapped, UnknownModel):
        return UnknownModel(f"{url}: {text}; try another name, `slipway serve` prints those that it serves")
    if any(part in text.lower() for part in _OTHER_SERVER):
        return not_triton(url, "HTTP", proxy)
    if _UNREADABLE in text.lower():
        return Malformed(f"{url}: the answer is malformed: {text}; see the server's log, or try another url")
    if _GATEWAY in text or (type(mapped) is NotReady and mapped.args[0] == text.strip()):
        return unreachable(url, "gRPC", text, proxy)
    return mapped
