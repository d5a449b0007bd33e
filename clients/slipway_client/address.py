"""What one ``--url`` means, the same in every command.

``grpc://``, ``grpcs://``, ``http://`` or ``https://`` before it says what is spoken there. HOST:PORT alone is
asked: a request of HTTP, which Triton's HTTP port answers, is no gRPC, and its gRPC port ends the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from slipway_client.generation import Protocol
from slipway_serving.errors import InvalidRequest

DEFAULT_URLS: dict[Protocol, str] = {"grpc": "localhost:8001", "http": "localhost:8000"}
"""Triton's own ports on this machine."""
_SCHEMES: dict[str, Protocol] = {"grpc": "grpc", "grpcs": "grpc", "http": "http", "https": "http"}
_ASK_S = 3.0


class Address(NamedTuple):
    """Where a server is and what is spoken there, as :class:`slipway_client.Client` takes it."""

    url: str
    protocol: Protocol


def address_of(url: str | None, protocol: Protocol | None = None, timeout_s: float = _ASK_S) -> Address:
    """Return where and how to speak to a server.

    Args:
        url: HOST:PORT of either port, or SCHEME://HOST:PORT; None is the default port on this machine, of
            gRPC unless `protocol` is "http".
        protocol: "grpc" or "http" to be spoken; None finds out.
        timeout_s: longest wait for what the port says, seconds. Where nothing answers it is "grpc".

    Raises:
        InvalidRequest: the scheme is none of the four, or is of the other protocol.
    """
    if url is None:
        return Address(DEFAULT_URLS[protocol or "grpc"], protocol or "grpc")
    scheme, separator, _ = url.rpartition("://")
    if not separator:
        return Address(url, protocol or _spoken_at(url, timeout_s))
    said = _SCHEMES.get(scheme)
    if said is None:
        raise InvalidRequest(
            f"url: scheme must be one of {', '.join(_SCHEMES)}, got {url!r}; try HOST:PORT of either port"
        )
    if protocol not in (None, said):
        raise InvalidRequest(
            f"url: scheme must be of the protocol {protocol}, got {url!r}; try it without --protocol"
        )
    return Address(url, said)


def _spoken_at(host_and_port: str, timeout_s: float) -> Protocol:
    import httpx

    try:
        with httpx.Client(timeout=timeout_s) as client:
            client.get(f"http://{host_and_port}/v2/health/live")
    except (httpx.HTTPError, httpx.InvalidURL):
        return "grpc"
    return "http"
