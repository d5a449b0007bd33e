"""Mapping of gRPC errors to Slipway errors: what the server reported, or why it was unreachable."""

from __future__ import annotations

from typing import Any

import grpc

from slipway_client.address_errors import not_triton_error, timeout_error, unreachable_error
from slipway_client.grpc import messages
from slipway_client.retry import Deadline, UnknownModel
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


def inference_error(
    url: str, error: grpc.RpcError, deadline: Deadline, proxy: Proxy | None = None
) -> SlipwayError:
    """Return the Slipway error for a call that failed."""
    mapped = _error(url, error, proxy)
    is_client_timeout = isinstance(mapped, DeadlineExceeded) and mapped.args[0] == "Deadline Exceeded"
    return deadline.exceeded() if is_client_timeout else mapped


def probe_error(url: str, error: Any, limit_s: float, proxy: Proxy | None = None) -> SlipwayError:
    """Return the Slipway error for a health or metadata call that failed."""
    mapped = _error(url, error, proxy)
    if isinstance(mapped, DeadlineExceeded):
        return timeout_error(url, limit_s, proxy)
    if isinstance(mapped, InvalidRequest):  # UNIMPLEMENTED: every Triton implements these calls
        return not_triton_error(url, "gRPC", proxy)
    return mapped


def _error(url: str, error: Any, proxy: Proxy | None) -> SlipwayError:
    """Return the Slipway error for a gRPC error, from its status and text."""
    status, text = error.code().name, error.details() or ""
    mapped = messages.error_of(text, status)
    if isinstance(mapped, UnknownModel):
        return UnknownModel(
            f"{url}: {text}; try another name; `slipway serve` prints the names of its models"
        )
    if any(part in text.lower() for part in _OTHER_SERVER):
        return not_triton_error(url, "HTTP", proxy)
    if _UNREADABLE in text.lower():
        return Malformed(f"{url}: the answer is malformed: {text}; see the server's log, or try another url")
    if _GATEWAY in text or (type(mapped) is NotReady and mapped.args[0] == text.strip()):
        return unreachable_error(url, "gRPC", text, proxy)
    return mapped
