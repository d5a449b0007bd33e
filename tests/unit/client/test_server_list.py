"""Which servers a client uses, and in which order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hostile import IDENTITY, answered, http_peer, once

from slipway_client import AsyncClient, Client
from slipway_client.address import address_of
from slipway_client.server_list import Route, ServerList, is_service_name
from slipway_serving.protocol.errors import InvalidRequest


@pytest.mark.parametrize(
    ("url", "addresses", "protocol"),
    [
        ("a:1", ("a:1",), "grpc"),
        ("a:1, b:2", ("a:1", "b:2"), "grpc"),
        (["a:1", "http://b:2"], ("a:1", "http://b:2"), "http"),
        (("grpcs://a:1", "grpcs://b:2"), ("grpcs://a:1", "grpcs://b:2"), "grpc"),
    ],
)
def test_list_has_the_addresses_and_their_protocol(
    url: str | Sequence[str], addresses: tuple[str, ...], protocol: str
) -> None:
    assert ServerList.of(url) == ServerList(addresses, protocol)  # type: ignore[arg-type]
    assert Client(url).url == AsyncClient(url).url == addresses[0]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ([], "url: must be at least one address, got none"),
        ("a:1,", "url: must be HOST:PORT or SCHEME://HOST:PORT, got ''"),
        ("a:1,a:1", "url: addresses must differ, got a:1, a:1"),
        ("grpc://a:1,http://b:1", "url: addresses must be of one protocol, got grpc://a:1, http://b:1"),
        ("a:1,ftp://b:1", "url: scheme must be one of grpc, grpcs, http, https, got 'ftp://b:1'"),
    ],
)
def test_list_is_refused_when_an_address_is_invalid_or_the_protocols_differ(url: Any, said: str) -> None:
    for take in (ServerList.of, Client, AsyncClient):
        with pytest.raises(InvalidRequest, match=re.escape(said)):
            take(url)


def test_route_goes_round_the_addresses() -> None:
    route = Route(ServerList(("a:1", "b:1", "c:1"), "grpc"), "b:1")
    seen = []
    for _ in range(4):
        seen.append(route.url)
        route.advance()
    assert seen == ["b:1", "c:1", "a:1", "b:1"]
    assert route.has_another


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("localhost:8001", False),
        ("127.0.0.1:8001", False),
        ("http://10.1.2.3:8000", False),
        ("grpcs://[::1]:8001", False),
        ("slipway:8001", True),
        ("https://video.example.org:443", True),
    ],
)
def test_host_is_a_service_name_when_it_is_neither_localhost_nor_an_ip_address(
    url: str, is_one: bool
) -> None:
    assert is_service_name(url) == is_one
    assert Route(ServerList((url,), "grpc"), url).has_another == is_one


def test_protocol_of_several_ports_is_http_when_one_of_them_answers_http() -> None:
    import json

    with http_peer({"/v2/health/live": once(answered(json.dumps(IDENTITY).encode()))}) as place:
        assert address_of(f"localhost:1,{place}") == (f"localhost:1,{place}", "http")
    assert address_of("localhost:1,127.0.0.1:1") == ("localhost:1,127.0.0.1:1", "grpc")
