"""What one ``--url`` means, the same in every command and for the clients.

``grpc://``, ``grpcs://``, ``http://`` or ``https://`` before it says what is spoken there. HOST:PORT alone is
asked: Triton's HTTP port says that it is Triton's, and its gRPC port ends a connection of HTTP.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from slipway_client.generation import Protocol
from slipway_client.retry import NotTriton
from slipway_serving import durations
from slipway_serving.errors import InvalidRequest, NotReady

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
        timeout_s: Longest wait for what the port says, seconds. Where nothing answers it is "grpc".

    Raises:
        InvalidRequest: The URL is none, its scheme is none of the four, or is of the other protocol.
        NotReady: The port answers HTTP, but it is not Triton; or a proxy leads to no answer.
    """
    if url is None:
        return Address(DEFAULT_URLS[protocol or "grpc"], protocol or "grpc")
    return Address(url, stated_protocol(url, protocol) or _spoken_at(url, timeout_s))


def stated_protocol(url: str, protocol: str | None) -> Protocol | None:
    """Return the protocol that a URL's scheme or a caller states; None where neither does.

    Args:
        url: HOST:PORT, or SCHEME://HOST:PORT.
        protocol: "grpc" or "http"; None states none.

    Raises:
        InvalidRequest: The URL is none, its scheme is unknown, or the scheme and `protocol` contradict.
    """
    if protocol not in (None, "grpc", "http"):
        raise InvalidRequest(f"client: protocol must be grpc or http, got {protocol!r}")
    scheme, separator, _ = url.rpartition("://")
    said = _SCHEMES.get(scheme)
    if separator and said is None:
        raise InvalidRequest(
            f"url: scheme must be one of {', '.join(_SCHEMES)}, got {url!r}; try HOST:PORT of either port"
        )
    if not _has_host(url if separator else f"//{url}"):
        raise InvalidRequest(f"url: must be HOST:PORT or SCHEME://HOST:PORT, got {url!r}; try localhost:8001")
    if said is not None and protocol not in (None, said):
        raise InvalidRequest(
            f"url: scheme must be of the protocol {protocol}, got {url!r}; try it without a protocol"
        )
    return said or protocol  # type: ignore[return-value]


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # the port is no number up to 65535, or an IPv6 address lacks its brackets
        return False


def _spoken_at(host_and_port: str, timeout_s: float) -> Protocol:
    from slipway_client.over_http import HttpTransport

    durations.check("url", "timeout_s", timeout_s)
    transport = HttpTransport(host_and_port, timeout_s)
    try:
        transport.check()
    except NotTriton:
        raise
    except NotReady:
        if transport.proxy is not None and not transport.has_answered:
            raise
        return "http" if transport.has_answered else "grpc"
    finally:
        transport.close()
    return "http"
