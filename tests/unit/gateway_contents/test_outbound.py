"""Requests to URLs of callers: which addresses are reached, and what an answer may be."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import trustme

from slipway_gateway.outbound.addresses import (
    MAX_URL_CHARACTERS,
    checked_target,
    is_allowed,
    is_public,
    resolve,
)
from slipway_gateway.outbound.fetch import BadStatus, Connecting, fetch_public, post_public
from slipway_serving.protocol.errors import InvalidRequest

FORBIDDEN = {
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "link-local": ["169.254.169.254", "169.254.0.1", "fe80::1"],
    "shared (CGNAT)": ["100.64.0.1", "100.127.255.255", "100.100.100.200"],
    "multicast": ["224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "192.0.2.1", "198.51.100.7", "203.0.113.9", "2001:db8::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "benchmarks": ["198.18.0.1", "198.19.255.255"],
    "site-local": ["fec0::1"],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"],
    "IPv4-compatible": ["::127.0.0.1", "::10.0.0.1", "::8.8.8.8"],
    "NAT64": ["64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8"],
    "6to4 and Teredo": ["2002:7f00:1::1", "2002:808:808::1", "2001:0:4136:e378::1"],
    "metadata of clouds": ["fd00:ec2::254", "192.0.0.192"],
}
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
NEVER = [
    "169.254.169.254",
    "fe80::1",
    "224.0.0.1",
    "0.0.0.0",
    "::",
    "240.0.0.1",
    "fd00:ec2::254",
    "100.100.100.200",
]


@pytest.mark.parametrize("text", [address for group in FORBIDDEN.values() for address in group])
async def test_address_is_refused_when_it_is_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))
    host = f"[{text}]" if ":" in text else text
    with pytest.raises(
        InvalidRequest, match="input_reference must be a URL whose host has public addresses only"
    ):
        await fetch_public(f"http://{host}/", max_bytes=10, timeout_s=5)
    for resolved in ([text], ["8.8.8.8", text]):
        with pytest.raises(InvalidRequest, match="public addresses only, got 'example.org'") as refused:
            await checked_target("http://example.org/", field="input_reference", resolve=fixed(*resolved))
        assert text not in str(refused.value)


@pytest.mark.parametrize("text", PUBLIC)
def test_address_is_allowed_when_it_is_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["10.0.0.1", "127.0.0.1", "::1", "fc00::1", "100.64.0.1", "::ffff:10.0.0.1"])
def test_private_address_is_allowed_when_the_operator_says_so(text: str) -> None:
    assert is_allowed(ipaddress.ip_address(text), allow_private=True)


@pytest.mark.parametrize("text", [*NEVER, "::ffff:169.254.169.254"])
def test_address_is_refused_when_even_private_ones_are_allowed(text: str) -> None:
    assert not is_allowed(ipaddress.ip_address(text), allow_private=True)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("", "begins with http:// or https://"),
        ("example.org/a", "begins with http:// or https://"),
        ("ftp://example.org/", "begins with http:// or https://"),
        ("file:///etc/passwd", "begins with http:// or https://"),
        ("gopher://example.org:70/", "begins with http:// or https://"),
        ("http://", "begins with http:// or https://"),
        ("http:///etc", "begins with http:// or https://"),
        ("http://user:secret@example.org/", "without user name and password"),
        ("http://example.org:22/", "port is 80, 443 or 1024 to 65535, got 22"),
        ("http://example.org:0/", "port is 80, 443 or 1024 to 65535, got 0"),
        ("http://example.org:99999/", "port is 80, 443 or 1024 to 65535, got 99999"),
        ("http://[fe80::1%25eth0]/", "must be a URL"),
        ("http://example.org/\r\nX: 1", "must be a URL"),
        ("http://exa mple.org/", "names a host"),
        ("http://" + "a" * MAX_URL_CHARACTERS, f"at most {MAX_URL_CHARACTERS} characters"),
    ],
)
async def test_url_is_refused_when_it_breaks_a_rule(url: str, rule: str) -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        raise AssertionError("the URL must be refused before its host is resolved")

    with pytest.raises(InvalidRequest, match=rule) as refused:
        await fetch_public(url, max_bytes=10, timeout_s=5, connecting=Connecting(resolve=never))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "127.1", "0177.0.0.1", "localhost", "LOCALHOST."]
)
async def test_url_is_refused_when_its_host_is_another_spelling_of_this_machine(host: str) -> None:
    with pytest.raises(InvalidRequest, match="input_reference must be a URL"):
        await fetch_public(f"http://{host}/", max_bytes=10, timeout_s=10)


async def test_url_is_refused_when_its_host_has_no_address() -> None:
    async def fails(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    for resolver in (fails, fixed()):
        with pytest.raises(InvalidRequest, match="whose host has an address, got 'example.org'"):
            await checked_target("http://example.org", field="webhook_url", resolve=resolver)


async def test_resolver_returns_each_address_once_when_it_asks_the_system() -> None:
    assert await resolve("127.0.0.1", 80) == ["127.0.0.1"]


def fixed(*addresses: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    async def answer(host: str, port: int) -> Sequence[str]:
        return addresses

    return answer


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(handle: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve one answer for each connection, and yield the port."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    started = await asyncio.start_server(guarded, "127.0.0.1", 0, ssl=tls)
    try:
        yield started.sockets[0].getsockname()[1]
    finally:
        started.close()


def answers(head: bytes, body: bytes = b"", seen: list[bytes] | None = None) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(request)
        writer.write(b"HTTP/1.1 " + head + b"\r\nConnection: close\r\n\r\n" + body)
        await writer.drain()

    return handle


LOCAL = Connecting(allow_private=True, resolve=fixed("127.0.0.1"))


async def fetch(
    port: int, scheme: str = "http", connecting: Connecting = LOCAL, timeout_s: float = 30
) -> bytes:
    found = await fetch_public(
        f"{scheme}://pictures.example.org:{port}/a?b#c",
        max_bytes=1000,
        timeout_s=timeout_s,
        connecting=connecting,
    )
    return found.data


async def test_fetch_returns_the_file_and_asks_by_name_when_the_address_was_checked() -> None:
    seen: list[bytes] = []
    handler = answers(b"200 OK\r\nContent-Type: Image/PNG; charset=x\r\nContent-Length: 3", b"abc", seen)
    async with server(handler) as port:
        found = await fetch_public(
            f"http://pictures.example.org:{port}/a?b#c", max_bytes=3, timeout_s=30, connecting=LOCAL
        )
    assert (found.data, found.content_type) == (b"abc", "image/png")
    assert seen[0].startswith(b"GET /a?b HTTP/1.1\r\n")
    assert f"\r\nhost: pictures.example.org:{port}\r\n".encode() in seen[0].lower()
    assert b"accept-encoding: identity" in seen[0].lower()


async def test_fetch_stays_at_the_checked_address_when_the_name_changes_between_check_and_use() -> None:
    asked: list[str] = []

    async def changing(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.255.255.1"]

    async with server(answers(b"200 OK\r\nContent-Length: 2", b"ok")) as port:
        assert await fetch(port, connecting=Connecting(allow_private=True, resolve=changing)) == b"ok"
    assert asked == ["pictures.example.org"]


async def test_fetch_takes_the_next_address_when_one_accepts_no_connection() -> None:
    async with server(answers(b"200 OK\r\nContent-Length: 2", b"ok")) as port:
        both = Connecting(allow_private=True, resolve=fixed("127.0.0.2", "127.0.0.1"))
        assert await fetch(port, connecting=both) == b"ok"
    with pytest.raises(InvalidRequest, match="got no connection") as refused:
        await fetch(port, connecting=both)
    assert "127.0.0" not in str(refused.value)


@pytest.mark.parametrize(
    "status", [b"301 Moved", b"302 Found", b"307 Temporary", b"308 Permanent", b"304 Same"]
)
async def test_fetch_is_refused_when_the_server_redirects_to_a_private_address(status: bytes) -> None:
    reached: list[bytes] = []
    async with server(answers(b"200 OK", b"secret", reached)) as inner:
        target = f"\r\nLocation: http://127.0.0.1:{inner}/\r\nContent-Length: 0".encode()
        async with server(answers(status + target)) as port:
            with pytest.raises(InvalidRequest, match="got a redirect"):
                await fetch(port)
    assert reached == []


@pytest.mark.parametrize("status", [b"404 Not Found", b"500 Oops", b"403 No"])
async def test_fetch_is_refused_when_the_status_is_no_success(status: bytes) -> None:
    async with server(answers(status + b"\r\nContent-Length: 0")) as port:
        with pytest.raises(BadStatus, match=f"got status {status[:3].decode()}"):
            await fetch(port)


@pytest.mark.parametrize(
    "head", [b"200 OK\r\nContent-Length: 1000000", b"200 OK", b"200 OK\r\nTransfer-Encoding: chunked"]
)
async def test_fetch_is_refused_when_the_body_is_longer_than_allowed(head: bytes) -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + head + b"\r\n\r\n")
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n" if b"chunked" in head else b"x" * 1024
        while True:
            writer.write(chunk)
            sent += 1024
            await writer.drain()

    async with server(endless) as port:
        with pytest.raises(InvalidRequest, match="a file of at most 1000 bytes, got a longer one"):
            await fetch(port)
    assert sent < 64 << 20


async def test_fetch_is_refused_when_the_answer_is_a_compressed_bomb() -> None:
    bomb = gzip.compress(bytes(1 << 20))[:900]
    head = b"200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d" % len(bomb)
    async with server(answers(head, bomb)) as port:
        with pytest.raises(InvalidRequest, match="got a compressed answer"):
            await fetch(port)


async def test_fetch_is_refused_when_the_answer_breaks_off_or_is_no_http() -> None:
    for head, body in ((b"200 OK\r\nContent-Length: 100", b"short"), (b"rubbish", b"")):
        async with server(answers(head, body)) as port:
            with pytest.raises(InvalidRequest, match="got an answer that breaks off"):
                await fetch(port)


async def test_fetch_is_refused_when_headers_never_end() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Header: " + b"x" * 4096 + b"\r\n")
            await writer.drain()

    async with server(endless) as port:
        with pytest.raises(InvalidRequest, match="got an answer that breaks off"):
            await fetch(port)


async def test_fetch_is_refused_when_the_server_sends_slower_than_the_time_for_everything() -> None:
    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with server(drips) as port:
        with pytest.raises(InvalidRequest, match="answers completely within 0.3 s"):
            await fetch(port, timeout_s=0.3)


async def test_fetch_is_refused_when_the_resolver_takes_too_long() -> None:
    async def slow(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(60)
        return ["8.8.8.8"]

    with pytest.raises(InvalidRequest, match="answers completely within 0.1 s"):
        await fetch(80, connecting=Connecting(resolve=slow), timeout_s=0.1)


async def test_fetch_ignores_proxies_when_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[bytes] = []
    async with (
        server(answers(b"200 OK", b"proxy", reached)) as proxy,
        server(answers(b"200 OK\r\nContent-Length: 6", b"direct")) as port,
    ):
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy}")
        assert await fetch(port) == b"direct"
    assert reached == []


async def test_fetch_checks_the_certificate_of_the_name_when_it_connects_to_an_address() -> None:
    authority = trustme.CA()
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    for name, fits in (("pictures.example.org", True), ("other.example.org", False)):
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(tls)
        names: list[str | None] = []
        tls.sni_callback = lambda _socket, asked, _context, names=names: names.append(asked)  # type: ignore[misc]
        local = Connecting(allow_private=True, resolve=fixed("127.0.0.1"), tls=trusted)
        async with server(answers(b"200 OK\r\nContent-Length: 2", b"ok"), tls) as port:
            if fits:
                assert await fetch(port, "https", local) == b"ok"
            else:
                with pytest.raises(InvalidRequest, match="its certificate is not trusted"):
                    await fetch(port, "https", local)
        assert names == ["pictures.example.org"]


async def test_fetch_is_refused_when_the_certificate_is_not_trusted() -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("pictures.example.org").configure_cert(tls)
    async with server(answers(b"200 OK"), tls) as port:
        with pytest.raises(InvalidRequest, match="its certificate is not trusted"):
            await fetch(port, "https")


async def test_post_sends_body_and_headers_when_the_address_was_checked() -> None:
    seen: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        seen.append(await reader.readexactly(3))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    async with server(handle) as port:
        status = await post_public(
            f"http://hooks.example.org:{port}/x", b"abc", {"webhook-id": "1"}, timeout_s=30, connecting=LOCAL
        )
    assert (status, seen[1]) == (204, b"abc")
    assert seen[0].startswith(b"POST /x HTTP/1.1") and b"webhook-id: 1" in seen[0]
