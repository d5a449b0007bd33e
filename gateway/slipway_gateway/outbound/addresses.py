"""Addresses that the gateway may connect to on behalf of a caller.

:func:`checked_target` parses a URL, resolves its host once, and checks every address. The connection then
goes to one of these very addresses, so a name that resolves differently a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import httpx

from slipway_serving.protocol.errors import InvalidRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Function that returns the addresses of a host for a connection to a port."""

MAX_URL_CHARACTERS = 2048
_PORTS = {"http": 80, "https": 443}
_FIRST_FREE_PORT, _LAST_PORT = 1024, 65_535
# Names and addresses after httpx has encoded them; a zone of IPv6 ("%eth0") belongs to a link-local address.
_HOST = re.compile(rb"[A-Za-z0-9._:-]{1,253}")
# Python counts these networks as global, but each of their addresses leads to an IPv4 address inside of it or
# to a relay. Only NAT64 is in use; its IPv4 address is checked, and the others are refused.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_TRANSITION = tuple(map(ipaddress.IPv6Network, ("64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))
# Cloud providers answer requests for credentials at these addresses, so they are refused even where private
# addresses are allowed. All link-local addresses are refused too, 169.254.169.254 among them.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")))


@dataclass(frozen=True)
class Target:
    """URL that was checked, with the addresses to connect to.

    Attributes:
        url: Parsed URL.
        addresses: Addresses of the host, all of them allowed.
        field: Name of the field that had the URL, for messages.
    """

    url: httpx.URL
    addresses: tuple[str, ...]
    field: str


def is_public(address: Address) -> bool:
    """Return True if an address belongs to a host on the internet, and to nobody's own network."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local or any(address in network for network in _TRANSITION):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address in _METADATA)


def is_allowed(address: Address, *, allow_private: bool) -> bool:
    """Return True if the gateway may connect to an address.

    Args:
        address: Address of a host.
        allow_private: True to allow private and loopback addresses too. Link-local, multicast and reserved
            addresses, and those at which clouds give out credentials, are never allowed.
    """
    if is_public(address):
        return True
    plain = getattr(address, "ipv4_mapped", None) or address
    never = plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain in _METADATA
    # Python counts ::1 as reserved.
    reserved = plain.is_reserved and not plain.is_loopback
    return allow_private and not (never or reserved)


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host by the resolver of the operating system.

    Raises:
        OSError: The host has no address, or the resolver does not answer.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def parse_url(url: str, field: str) -> httpx.URL:
    """Parse a URL and check everything about it that needs no resolver.

    Args:
        url: URL from a caller.
        field: Name of the field that had it, for messages.

    Raises:
        InvalidRequest: The URL is malformed or too long, or its scheme, port or credentials are not allowed.
    """
    if len(url) > MAX_URL_CHARACTERS:
        raise InvalidRequest(
            f"{field} must be a URL of at most {MAX_URL_CHARACTERS} characters, got {len(url)}; try a shorter"
            " one"
        )
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise InvalidRequest(f"{field} must be a URL, got {url[:80]!r} ({error}); try https://…") from None
    if parsed.scheme not in _PORTS or not _HOST.fullmatch(parsed.raw_host):
        raise InvalidRequest(
            f"{field} must be a URL that begins with http:// or https:// and names a host, got"
            f" {url[:80]!r}; try https://…"
        )
    if parsed.userinfo or "@" in parsed.netloc.decode("ascii", "replace"):
        # The message must not repeat a password.
        raise InvalidRequest(f"{field} must be a URL without user name and password, got one with them")
    port = parsed.port
    if port is not None and not (port in _PORTS.values() or _FIRST_FREE_PORT <= port <= _LAST_PORT):
        raise InvalidRequest(
            f"{field} must be a URL whose port is 80, 443 or {_FIRST_FREE_PORT} to {_LAST_PORT}, got {port}"
        )
    return parsed


async def checked_target(
    url: str, *, field: str, allow_private: bool = False, resolve: Resolve = resolve
) -> Target:
    """Parse a URL, resolve its host once, and check every address of the host.

    Args:
        url: URL from a caller.
        field: Name of the field that had it, for messages.
        allow_private: True to allow private and loopback addresses too.
        resolve: Resolver of host names.

    Raises:
        InvalidRequest: The URL is not allowed, its host has no address, or one of its addresses is not
            allowed. The message does not show the address, since that would tell callers about names in the
            gateway's own network.
    """
    parsed = parse_url(url, field)
    host = parsed.raw_host.decode("ascii")
    try:
        found = await resolve(host, parsed.port or _PORTS[parsed.scheme])
        # A zone belongs to a link-local address, and httpx has no place for it.
        addresses = [ipaddress.ip_address(address.partition("%")[0]) for address in found]
    except (OSError, ValueError):
        addresses = []
    if not addresses:
        raise InvalidRequest(
            f"{field} must be a URL whose host has an address, got {host[:80]!r}; try another"
        )
    if not all(is_allowed(address, allow_private=allow_private) for address in addresses):
        raise InvalidRequest(
            f"{field} must be a URL whose host has public addresses only, got {host[:80]!r}; try a server on"
            " the internet, or ask the operator for --allow-private-addresses"
        )
    return Target(parsed, tuple(map(str, addresses)), field)
