"""Which proxy of the environment a connection takes, decided in one place for HTTP and for gRPC.

A connection to this machine takes none, and neither does one to a host that `no_proxy` names. Errors of other
connections name the variable that led them through a proxy, since whoever set it may not think of it.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

HTTP = ("http", "all")
"""Variables that lead a URL of http:// through a proxy, without their ending `_proxy`; the first counts."""
HTTPS = ("https", "all")
"""Variables of a URL of https://."""
GRPC = ("grpc", "https", "http")
"""Variables that gRPC itself reads, in lower case only."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that the environment names.

    Attributes:
        variable: Name of the variable.
        url: URL of the proxy; it may contain a password.
        host: Host that is reached through it.
    """

    variable: str
    url: str
    host: str

    @property
    def told(self) -> str:
        """Return what an error adds about the proxy; a password of its URL is not shown."""
        place = self.url.rpartition("@")[2].rpartition("://")[2].rstrip("/")
        return (
            f" (through the proxy {place}, which {self.variable} names;"
            f" set no_proxy={self.host} if {self.host} needs none)"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def proxy_of(place: str, kinds: tuple[str, ...]) -> Proxy | None:
    """Return the proxy that leads to a server; None where the connection is direct.

    Args:
        place: "HOST:PORT" of the server, or its host alone.
        kinds: Which variables count: :data:`HTTP`, :data:`HTTPS` or :data:`GRPC`.
    """
    host = urlsplit(f"//{place}").hostname or place
    found = getproxies_environment()
    if is_loopback(host) or proxy_bypass_environment(place, found) or _in_network(host, found.get("no", "")):
        return None
    for kind in kinds:
        name = f"{kind}_proxy"
        if kinds is GRPC:
            url = os.environ.get(name, "")
        else:
            url = found.get(kind, "")
            name = name if os.environ.get(name) else name.upper()
        if url:
            return Proxy(name, url if "://" in url else f"http://{url}", host)
    return None


def grpc_options(proxy: Proxy | None) -> tuple[tuple[str, int], ...]:
    """Return the options of a gRPC channel that takes a proxy of the environment, or none."""
    return () if proxy else (("grpc.enable_http_proxy", 0),)


def _in_network(host: str, no_proxy: str) -> bool:
    """Return whether `no_proxy` names a network, for example 10.0.0.0/8, that contains an address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for part in no_proxy.split(","):
        try:
            if address in ipaddress.ip_network(part.strip(), strict=False):
                return True
        except ValueError:  # this part names a host
            continue
    return False
