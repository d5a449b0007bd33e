"""Addresses of the replicas: those that were given, with each host name replaced by its IP addresses.

A headless service of Kubernetes has one name for all of its pods. Each pod becomes one replica, so that jobs
and sessions can be counted for it. Names are resolved again while the gateway runs.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from slipway_client import address
from slipway_client.server_list import is_service_name
from slipway_serving.protocol.errors import InvalidRequest

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Function that returns the IP addresses of a host name; none if the name does not exist.

It raises OSError if the name service does not answer; the earlier addresses stay valid then.
"""
_SECURED = ("grpcs://", "https://")


@dataclass(frozen=True)
class GivenAddress:
    """Address from the command line.

    Attributes:
        text: Address, "HOST:PORT" or "SCHEME://HOST:PORT".
        host: Host of the address.
        is_name: True if the host is a name that is replaced by its IP addresses. A name with TLS stays as it
            is, since the server's certificate is for the name.
    """

    text: str
    host: str
    is_name: bool

    def at(self, ip: str) -> str:
        """Return the address with an IP address in place of the name."""
        parts = _split(self.text)
        scheme = f"{parts.scheme}://" if "://" in self.text else ""
        return f"{scheme}{_bracketed(ip)}:{parts.port}"


def given_addresses(texts: Sequence[str]) -> tuple[GivenAddress, ...]:
    """Parse the addresses from the command line.

    Raises:
        InvalidRequest: There is no address, or one is invalid.
    """
    found = []
    for text in address.split_addresses(texts):
        parts = _split(text)
        if not parts.hostname or parts.port is None:
            raise InvalidRequest(
                f"gateway: triton must be HOST:PORT, got {text!r}; try localhost:8001 or grpc://localhost:8001"
            )
        is_name = is_service_name(text) and not text.startswith(_SECURED)
        found.append(GivenAddress(text, parts.hostname, is_name))
    return tuple(found)


def metrics_url(replica_url: str, port: int | None) -> str | None:
    """Return the URL of a replica's metrics page; None without a port."""
    host = _split(replica_url).hostname or ""
    return f"http://{_bracketed(host)}:{port}/metrics" if port else None


async def resolve(name: str) -> Sequence[str]:
    """Return the IP addresses of a host name, sorted; see :data:`Resolve`."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return ()
        raise
    return sorted({str(sockaddr[0]) for *_, sockaddr in found})


def _split(text: str) -> SplitResult:
    return urlsplit(text if "://" in text else f"//{text}")


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host
