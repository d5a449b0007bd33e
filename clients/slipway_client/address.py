"""Server addresses: the meaning of ``--url``, shared by every command and the clients.

The scheme ``grpc://``, ``grpcs://``, ``http://`` or ``https://`` states the protocol. Without a scheme, the
port is probed over HTTP: Triton's HTTP port identifies itself, and its gRPC port closes an HTTP connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from slipway_client.generation import Protocol
from slipway_client.retry import NotTriton
from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import InvalidRequest, NotReady

DEFAULT_URLS: dict[Protocol, str] = {"grpc": "localhost:8001", "http": "localhost:8000"}
"""Triton's default ports on this machine."""
_SCHEMES: dict[str, Protocol] = {"grpc": "grpc", "grpcs": "grpc", "http": "http", "https": "http"}
_DETECT_TIMEOUT_S = 3.0


class Address(NamedTuple):
    """URL and protocol of servers, in the order that :class:`slipway_client.Client` takes them."""

    url: str
    protocol: Protocol


def address_of(
    url: str | None, protocol: Protocol | None = None, timeout_s: float = _DETECT_TIMEOUT_S
) -> Address:
    """Return the URL and the protocol of a server, or of several that serve the same models.

    Args:
        url: HOST:PORT of either port, or SCHEME://HOST:PORT, or several of them separated by commas; None
            means the default port on this machine, that of gRPC unless `protocol` is "http".
        protocol: Protocol to use, "grpc" or "http"; None detects it.
        timeout_s: Longest wait for each port's answer, in seconds. Without an answer, "grpc" is assumed.

    Raises:
        InvalidRequest: The URL is invalid, or its scheme is unknown or belongs to the other protocol.
        NotReady: The port answers HTTP but is not Triton, or the proxy gets no answer.
    """
    if url is None:
        return Address(DEFAULT_URLS[protocol or "grpc"], protocol or "grpc")
    addresses = split_addresses(url)
    stated = common_protocol(addresses, protocol)
    return Address(url, stated or _detect_common_protocol(addresses, timeout_s))


def split_addresses(url: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses that a caller gives.

    Args:
        url: One address, several separated by commas, or a sequence of addresses.

    Raises:
        InvalidRequest: There is no address, or one comes twice.
    """
    addresses = tuple(part.strip() for part in (url.split(",") if isinstance(url, str) else url))
    if not addresses:
        raise InvalidRequest("url: must be at least one address, got none; try localhost:8001")
    if len(set(addresses)) < len(addresses):
        raise InvalidRequest(f"url: addresses must differ, got {', '.join(addresses)}")
    return addresses


def common_protocol(addresses: Sequence[str], protocol: str | None) -> Protocol | None:
    """Return the protocol that the schemes or the caller state, or None if neither does.

    Args:
        addresses: Addresses of servers.
        protocol: Protocol that the caller states, as for :func:`stated_protocol`.

    Raises:
        InvalidRequest: An address is invalid, or the addresses are of two protocols.
    """
    stated = {found for each in addresses if (found := stated_protocol(each, protocol)) is not None}
    if len(stated) > 1:
        raise InvalidRequest(
            f"url: addresses must be of one protocol, got {', '.join(addresses)}; try the scheme grpc:// or"
            " http:// for all"
        )
    return next(iter(stated), None)


def stated_protocol(url: str, protocol: str | None) -> Protocol | None:
    """Return the protocol that the URL's scheme or the caller states, or None if neither does.

    Args:
        url: HOST:PORT, or SCHEME://HOST:PORT.
        protocol: Protocol that the caller states, "grpc" or "http"; None leaves it to the scheme.

    Raises:
        InvalidRequest: The URL is invalid, its scheme is unknown, or the scheme contradicts `protocol`.
    """
    if protocol not in (None, "grpc", "http"):
        raise InvalidRequest(f"client: protocol must be grpc or http, got {protocol!r}")
    scheme, separator, _ = url.rpartition("://")
    scheme_protocol = _SCHEMES.get(scheme)
    if separator and scheme_protocol is None:
        raise InvalidRequest(
            f"url: scheme must be one of {', '.join(_SCHEMES)}, got {url!r}; try HOST:PORT of either port"
        )
    if not _has_host(url if separator else f"//{url}"):
        raise InvalidRequest(f"url: must be HOST:PORT or SCHEME://HOST:PORT, got {url!r}; try localhost:8001")
    if scheme_protocol is not None and protocol not in (None, scheme_protocol):
        raise InvalidRequest(
            f"url: scheme must be of the protocol {protocol}, got {url!r}; try it without a protocol"
        )
    return scheme_protocol or protocol  # type: ignore[return-value]


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:  # The port is not a number up to 65535, or an IPv6 address lacks its brackets.
        return False


def _detect_common_protocol(addresses: Sequence[str], timeout_s: float) -> Protocol:
    """Return the protocol of ports: HTTP if one of them answers HTTP, else gRPC."""
    found = (_detect_protocol(each, timeout_s) for each in addresses)
    return "http" if "http" in found else "grpc"


def _detect_protocol(host_and_port: str, timeout_s: float) -> Protocol:
    """Return the protocol of a port: HTTP if it answers HTTP, else gRPC."""
    from slipway_client.http.transport import HttpTransport

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
