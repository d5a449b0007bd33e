"""Addresses of the servers that a client may use: one, or several that serve the same models.

A request that must leave a server goes to the next address of the list. A service name stands for several
servers behind one address, so a new connection to it may lead to another server.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from slipway_client import address, generation


@dataclass(frozen=True)
class ServerList:
    """Addresses of servers, in the order in which they are tried.

    Attributes:
        addresses: Addresses, each "HOST:PORT" or "SCHEME://HOST:PORT"; at least one.
        protocol: Protocol of all of them.
    """

    addresses: tuple[str, ...]
    protocol: generation.Protocol

    @classmethod
    def of(cls, url: str | Sequence[str], protocol: generation.Protocol | None = None) -> ServerList:
        """Return the list that a caller gives.

        Args:
            url: One address, several separated by commas, or a sequence of addresses.
            protocol: Protocol that the caller states; None leaves it to the schemes, and means "grpc" if
                there are none.

        Raises:
            InvalidRequest: There is no address, one is invalid, or they are of two protocols.
        """
        addresses = address.split_addresses(url)
        return cls(addresses, address.common_protocol(addresses, protocol) or "grpc")

    def after(self, url: str) -> str:
        """Return the address that follows one in the list; the first follows the last."""
        return self.addresses[(self.addresses.index(url) + 1) % len(self.addresses)]

    def has_another(self, url: str) -> bool:
        """Return True if a request that leaves the server at an address may reach another one."""
        return len(self.addresses) > 1 or is_service_name(url)


def is_service_name(url: str) -> bool:
    """Return True if the host of an address is a name that may stand for several servers."""
    host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    if host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


class Route:
    """Way of one request from server to server.

    Args:
        servers: Servers of the client.
        url: Address of the first server.

    Attributes:
        url: Address of the server that works on the request.
    """

    def __init__(self, servers: ServerList, url: str) -> None:
        self._servers = servers
        self.url = url

    @property
    def has_another(self) -> bool:
        """True if the request may reach another server."""
        return self._servers.has_another(self.url)

    def advance(self) -> None:
        """Go on to the next address; with one address, this is the same one."""
        self.url = self._servers.after(self.url)
