"""Choice of the proxy for a connection from the environment, the same for HTTP and for gRPC.

Connections to this machine and to hosts that `no_proxy` names use no proxy. Errors of other connections name
the variable that set the proxy, since the user may have forgotten it.
"""

from __future__ import annotations

import functools
import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

HTTP = ("http", "all")
"""Variables that set the proxy for http:// URLs, without the suffix `_proxy`; the first that is set wins."""
HTTPS = ("https", "all")
"""Variables that set the proxy for https:// URLs, in the same form as :data:`HTTP`."""
GRPC = ("grpc", "https", "http")
"""Variables that set the proxy for gRPC, which reads them in lower case only."""


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
    def description(self) -> str:
        """Text about the proxy for an error message, without the password of its URL."""
        address = self.url.rpartition("@")[2].rpartition("://")[2].rstrip("/")
        return (
            f" (through the proxy {address}, which {self.variable} names;"
            f" set no_proxy={self.host} if {self.host} needs none)"
        )


@functools.lru_cache(maxsize=64)  # a gateway asks it at each request
def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def proxy_of(address: str, variables: tuple[str, ...]) -> Proxy | None:
    """Return the proxy for a connection to a server; None if the connection is direct.

    Args:
        address: Address of the server, "HOST:PORT" or the host alone.
        variables: Variables to read: :data:`HTTP`, :data:`HTTPS` or :data:`GRPC`.
    """
    host = urlsplit(f"//{address}").hostname or address
    proxies = getproxies_environment()
    if (
        is_loopback(host)
        or proxy_bypass_environment(address, proxies)
        or _in_network(host, proxies.get("no", ""))
    ):
        return None
    for kind in variables:
        name = f"{kind}_proxy"
        if variables is GRPC:
            url = os.environ.get(name, "")
        else:
            url = proxies.get(kind, "")
            name = name if os.environ.get(name) else name.upper()
        if url:
            return Proxy(name, url if "://" in url else f"http://{url}", host)
    return None


def grpc_options(proxy: Proxy | None) -> tuple[tuple[str, int], ...]:
    """Return the gRPC channel options, which disable gRPC's own proxy lookup if there is no proxy."""
    return () if proxy else (("grpc.enable_http_proxy", 0),)


def _in_network(host: str, no_proxy: str) -> bool:
    """Return True if `no_proxy` names a network, for example 10.0.0.0/8, that contains the host's address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for part in no_proxy.split(","):
        try:
            if address in ipaddress.ip_network(part.strip(), strict=False):
                return True
        except ValueError:  # this part is a host name
            continue
    return False
