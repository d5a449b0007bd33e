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
        "check the spelling of the host, or try its IP address",
    ),
    (
        ("no route to host", "network is unreachable"),
        "no route to this host",
        "check the url and the firewall of the network",
    ),
    (
        ("certificate_verify_failed", "certificate verify failed", "hostname mismatch", "peer name"),
        "the server's certificate is not trusted, or was issued for another host",
        "try --tls (in code: tls) with a folder that contains the ca.crt that signed the certificate",
    ),
    (
        ("certificate required", "certificate_required", "bad certificate", "handshake failure"),
        "the server requires a client certificate",
        "try --tls (in code: tls) with a folder that contains tls.crt and tls.key",
    ),
    (
        ("wrong_version_number", "wrong version number", "record layer failure", "http_request"),
        "this port does not use TLS",
        "try the scheme grpc:// or http:// instead of grpcs:// or https://",
    ),
    (
        ("failed parsing http/2", "missing selected alpn"),
        "this port does not speak gRPC",
        "try the scheme http:// or https://, or the gRPC port (8001 by default)",
    ),
    (
        ("illegal request line", "illegal status line"),
        "this port does not speak HTTP",
        "try the scheme grpc:// or grpcs://, or the HTTP port (8000 by default)",
    ),
    (
        ("server disconnected", "connection reset", "socket closed", "broken pipe"),
        "the server closed the connection before it answered",
        "try again; if the error remains, the port speaks another protocol: try the scheme grpc://, http://,"
        " grpcs:// or https://",
    ),
)


def unreachable_error(url: str, protocol: str, text: str, proxy: Proxy | None) -> NotReady:
    """Return the error for a server that did not answer.

    Args:
        url: URL of the server.
        protocol: Name of the protocol.
        text: Texts of the error and of its causes.
        proxy: Proxy of the connection; None for a direct one.
    """
    lowered = text.lower()
    for parts, cause, fix in _CAUSES:
        if any(part in lowered for part in parts):
            return NotReady(f"{url}: unavailable over {protocol}: {cause}{_via_proxy(proxy)}; {fix}")
    return NotReady(
        f"{url}: unavailable over {protocol}: {text}{_via_proxy(proxy)};"
        " try another url, or `slipway serve` there"
    )


def timeout_error(url: str, limit_s: float, proxy: Proxy | None) -> NotReady:
    """Return the error for a server that did not answer completely in time.

    Args:
        url: URL of the server.
        limit_s: Time limit in seconds.
        proxy: Proxy of the connection; None for a direct one.
    """
    return NotReady(
        f"{url}: no answer within {limit_s:.3g} s{_via_proxy(proxy)}; try another url, or see the server's"
        " log"
    )


def not_triton_error(url: str, protocol: str, proxy: Proxy | None) -> NotTriton:
    """Return the error for a server that answers, but not as Triton does.

    Args:
        url: URL of the server.
        protocol: Name of the protocol.
        proxy: Proxy of the connection; None for a direct one.
    """
    return NotTriton(
        f"{url}: this address answers {protocol}, but it is not Triton{_via_proxy(proxy)}; try Triton's"
        " port of"
        " HTTP or gRPC (by default 8000 and 8001), with http:// or grpc:// before the address"
    )


def error_texts(error: BaseException) -> str:
    """Return the texts of an error and of all its causes."""
    texts: list[str] = []
    pending: list[BaseException | None] = [error]
    seen: set[int] = set()
    while pending:
        each = pending.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        text = str(each) or type(each).__name__
        if not any(text in known for known in texts):
            texts.append(text)
        pending += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
    return ": ".join(texts)


def _via_proxy(proxy: Proxy | None) -> str:
    return proxy.description if proxy else ""
