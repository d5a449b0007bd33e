"""Errors for an unusable address, each with its cause in one sentence and a fix.

Both protocols report the same causes with different texts: the operating system's, OpenSSL's, gRPC's. This
module maps those texts to one sentence each, so that the user can tell a refused connection, an unknown host
and a wrong port apart.
"""

from __future__ import annotations

from slipway_client.retry import NotTriton
from slipway_serving.protocol.errors import NotReady
from slipway_serving.protocol.proxies import Proxy

_CAUSES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("connection refused",),
        "connection refused, nothing listens at this address",
        "try `slipway serve` there, or another url",
    ),
    (
        (
            "name or service not known",
            "name resolution",
            "no address associated",
            "nodename nor servname",
            "dns resolution failed",
            "name does not resolve",
            "domain name not found",
            "hostname lookup error",
        ),
        "unknown host, its name has no address",
        "try another spelling of the url, or the address itself",
    ),
    (
        ("no route to host", "network is unreachable"),
        "no route to this host",
        "try another url, or see the network's firewall",
    ),
    (
        ("certificate_verify_failed", "certificate verify failed", "hostname mismatch", "peer name"),
        "the server's certificate is not trusted, or is of another host",
        "try --tls (in code: tls) with a folder that holds the ca.crt which signed it",
    ),
    (
        ("certificate required", "certificate_required", "bad certificate", "handshake failure"),
        "the server asks for a certificate that it knows",
        "try --tls (in code: tls) with a folder that holds tls.crt and tls.key",
    ),
    (
        ("wrong_version_number", "wrong version number", "record layer failure", "http_request"),
        "the server does not speak TLS at this port",
        "try grpc:// or http:// before the address, in place of grpcs:// or https://",
    ),
    (
        ("failed parsing http/2", "missing selected alpn"),
        "the server does not speak gRPC at this port",
        "try http:// or https:// before the address, or the port of gRPC (by default 8001)",
    ),
    (
        ("illegal request line", "illegal status line"),
        "the server does not speak HTTP at this port",
        "try grpc:// or grpcs:// before the address, or the port of HTTP (by default 8000)",
    ),
    (
        ("server disconnected", "connection reset", "socket closed", "broken pipe"),
        "the server ended the connection before its answer",
        "try again; if it stays so, the port speaks another protocol: try grpc://, http://, or with TLS"
        " grpcs://, https://",
    ),
)


def unreachable(url: str, spoken: str, said: str, proxy: Proxy | None) -> NotReady:
    """Return the error for a server that did not answer.

    Args:
        url: URL of the server.
        spoken: Name of the protocol.
        said: Texts of the error and of its causes.
        proxy: Proxy of the connection; None for a direct one.
    """
    lowered = said.lower()
    for parts, happened, fix in _CAUSES:
        if any(part in lowered for part in parts):
            return NotReady(f"{url}: unavailable over {spoken}: {happened}{_through(proxy)}; {fix}")
    return NotReady(
        f"{url}: unavailable over {spoken}: {said}{_through(proxy)};"
        " try another url, or `slipway serve` there"
    )


def silent(url: str, limit_s: float, proxy: Proxy | None) -> NotReady:
    """Return the error for a server that did not answer completely in time.

    Args:
        url: URL of the server.
        limit_s: Time limit in seconds.
        proxy: Proxy of the connection; None for a direct one.
    """
    return NotReady(
        f"{url}: no answer within {limit_s:.3g} s{_through(proxy)}; try another url, or see the server's log"
    )


def not_triton(url: str, spoken: str, proxy: Proxy | None) -> NotTriton:
    """Return the error for a server that answers, but not as Triton does.

    Args:
        url: URL of the server.
        spoken: Name of the protocol.
        proxy: Proxy of the connection; None for a direct one.
    """
    return NotTriton(
        f"{url}: this address answers {spoken}, but it is not Triton{_through(proxy)}; try Triton's port of"
        " HTTP or gRPC (by default 8000 and 8001), with http:// or grpc:// before the address"
    )


def texts_of(error: BaseException) -> str:
    """Return the texts of an error and of all its causes."""
    found: list[str] = []
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        text = str(each) or type(each).__name__
        if not any(text in known for known in found):
            found.append(text)
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
    return ": ".join(found)


def _through(proxy: Proxy | None) -> str:
    return proxy.told if proxy else ""
