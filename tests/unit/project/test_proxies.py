"""Variables that name proxies: whom they lead where, and what users hear when that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hostile import answered, grpc_peer, http_peer, once

from slipway_cli import root
from slipway_client import AsyncClient, Client, RetryPolicy
from slipway_client.address import address_of
from slipway_client.generation import Protocol
from slipway_serving.protocol.errors import InvalidRequest, NotReady
from slipway_serving.protocol.proxies import GRPC, HTTP, HTTPS, Proxy, proxy_of
from slipway_serving.triton.control import ModelControl

VARIABLES = [
    each
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy")
    for each in (name, name.upper())
]
DEAD = "http://127.0.0.1:1"
# From a range for documents, so that nobody is asked; a name would be looked up.
ELSEWHERE = "203.0.113.7:8000"
ONCE = RetryPolicy(budget_s=0)


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variable", "kinds", "found"),
    [
        ("http_proxy", HTTP, True),
        ("HTTP_PROXY", HTTP, True),
        ("all_proxy", HTTP, True),
        ("ALL_PROXY", HTTPS, True),
        ("https_proxy", HTTPS, True),
        ("HTTPS_PROXY", HTTPS, True),
        ("https_proxy", HTTP, False),
        ("http_proxy", HTTPS, False),
        ("grpc_proxy", GRPC, True),
        ("http_proxy", GRPC, True),
        ("https_proxy", GRPC, True),
        ("HTTPS_PROXY", GRPC, False),  # gRPC reads lower case only
        ("all_proxy", GRPC, False),
    ],
)
def test_variable_leads_through_a_proxy_when_it_is_of_the_protocol(
    variable: str, kinds: tuple[str, ...], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "proxy.example:3128")
    expected = Proxy(variable, "http://proxy.example:3128", "triton.example") if found else None
    assert proxy_of("triton.example:8000", kinds) == expected


@pytest.mark.parametrize(
    ("place", "no_proxy"),
    [
        ("localhost:8000", ""),
        ("127.0.0.1:8000", ""),
        ("127.9.9.9:8000", ""),
        ("[::1]:8000", ""),
        ("triton.example:8000", "triton.example"),
        ("a.triton.example:8000", "other, .triton.example"),
        ("triton.example:8000", "*"),
        ("triton.example:8000", "triton.example:8000"),
        ("10.1.2.3:8000", "10.0.0.0/8"),
        ("[fd00::1]:8000", "fd00::/8"),
    ],
)
@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY"])
def test_connection_is_direct_when_the_host_is_here_or_no_proxy_names_it(
    place: str, no_proxy: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ALL_PROXY", "http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, DEAD)
    if no_proxy:
        monkeypatch.setenv(variable, no_proxy)
    assert [proxy_of(place, kinds) for kinds in (HTTP, HTTPS, GRPC)] == [None] * 3


def test_other_hosts_take_the_proxy_when_no_proxy_names_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", DEAD)
    monkeypatch.setenv("no_proxy", "triton.example, 10.0.0.0/8, none/99")
    for place in ("11.0.0.1:8000", "triton.example.org:8000"):
        assert proxy_of(place, HTTP) is not None


@pytest.mark.parametrize("value", [DEAD, "socks5://127.0.0.1:1", "nonsense://x", "127.0.0.1:1"])
def test_server_on_this_machine_is_reached_when_variables_name_proxies(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in VARIABLES:
        if not name.lower().startswith("no_"):
            monkeypatch.setenv(name, value)

    async def asked(url: str, protocol: Protocol) -> bool:
        async with AsyncClient(url, protocol) as client:
            return await client.is_ready()

    protocols: tuple[Protocol, ...] = ("http", "grpc")
    for peer, protocol in zip((http_peer, grpc_peer), protocols, strict=True):
        with peer({}) as place:
            assert address_of(place) == (place, protocol)
            with Client(place, protocol) as client:
                assert client.is_ready()
            assert asyncio.run(asked(place, protocol))
            assert root.run(["ready", "--url", place]) == 0
    assert capsys.readouterr().out == "ready\n" * 2


@pytest.mark.parametrize("url", [ELSEWHERE, f"http://{ELSEWHERE}", f"https://{ELSEWHERE}"])
def test_failure_names_the_variable_when_a_proxy_is_dead(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://user:secret@127.0.0.1:1")
    assert root.run(["ready", "--url", url]) == 1
    err = capsys.readouterr().err
    assert "through the proxy 127.0.0.1:1, which ALL_PROXY names; set no_proxy=203.0.113.7" in err
    assert "secret" not in err and err.count("\n") == 1


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_failure_over_grpc_names_the_variable_when_a_proxy_is_dead(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, DEAD)
    with (
        Client(f"grpc://{ELSEWHERE}", retry=ONCE, connect_timeout_s=20) as client,
        pytest.raises(NotReady, match=f"through the proxy 127.0.0.1:1, which {variable} names"),
    ):
        client.infer("m", {"x": np.ones(1, np.float32)})


def test_failure_names_the_variable_when_the_proxy_answers_in_the_servers_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = once(answered(b"<html>Bad gateway</html>", status="502 Bad Gateway"))
    with http_peer({"/v2": refusal}) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        with Client(f"http://{ELSEWHERE}", retry=ONCE) as client, pytest.raises(NotReady) as raised:
            client.check_ready()
    assert f"HTTP status 502 (through the proxy {proxy}, which HTTP_PROXY names" in str(raised.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("socks5://127.0.0.1:1", "client: ALL_PROXY names a SOCKS proxy, which needs another package"),
        ("nonsense://x", "client: ALL_PROXY must be the URL of an http, https or socks5 proxy"),
    ],
)
def test_variable_is_refused_by_name_when_httpx_cannot_take_its_proxy(
    value: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(InvalidRequest, match=said):
        Client(f"http://{ELSEWHERE}")
    line = ["generate", "wan_t2v", "x", "--output", str(tmp_path / "o.mp4"), "--url", f"http://{ELSEWHERE}"]
    assert root.run(line) == 2
    assert said in capsys.readouterr().err


def test_orders_to_a_server_take_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", DEAD)
    with http_peer({}, b"[]") as place:
        assert ModelControl(place).ready_models() == frozenset()
