"""What a `--url` means before any server is asked; `test_clients.py` asks the ports of a real one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from slipway_client import AsyncClient, Client
from slipway_client.address import address_of
from slipway_client.generation import Protocol
from slipway_serving.protocol.errors import InvalidRequest


@pytest.mark.parametrize(
    ("url", "protocol", "meant"),
    [
        (None, None, ("localhost:8001", "grpc")),
        (None, "http", ("localhost:8000", "http")),
        ("grpc://a:1", None, ("grpc://a:1", "grpc")),
        ("grpcs://a:1", "grpc", ("grpcs://a:1", "grpc")),
        ("http://a:1", None, ("http://a:1", "http")),
        ("https://a/b", None, ("https://a/b", "http")),
        ("localhost:1", "http", ("localhost:1", "http")),
        ("localhost:1", None, ("localhost:1", "grpc")),  # nobody is there
    ],
)
def test_url_says_what_is_spoken_there_when_it_has_a_scheme(
    url: str | None, protocol: Protocol | None, meant: tuple[str, str]
) -> None:
    assert address_of(url, protocol) == meant


@pytest.mark.parametrize(
    ("url", "protocol", "said"),
    [
        ("ftp://a:1", None, "url: scheme must be one of grpc, grpcs, http, https, got 'ftp://a:1'"),
        ("http://a:1", "grpc", "url: scheme must be of the protocol grpc, got 'http://a:1'"),
        ("grpcs://a:1", "http", "url: scheme must be of the protocol http, got 'grpcs://a:1'"),
        ("a:1", "ftp", "client: protocol must be grpc or http, got 'ftp'"),
        ("", None, "url: must be HOST:PORT or SCHEME://HOST:PORT, got ''"),
        ("http://", None, "url: must be HOST:PORT or"),
        (":8001", None, "url: must be HOST:PORT or"),
        ("a:port", None, "url: must be HOST:PORT or"),
        ("a:65536", None, "url: must be HOST:PORT or"),
        ("a:0", None, "url: must be HOST:PORT or"),
        ("a b:1", None, "url: must be HOST:PORT or"),
        ("http://a\x1b:1", None, "url: must be HOST:PORT or"),
        ("http://[::1:1", None, "url: must be HOST:PORT or"),
    ],
)
def test_url_is_refused_when_its_scheme_is_unknown_or_contradicts(url: str, protocol: Any, said: str) -> None:
    for take in (address_of, Client, AsyncClient):
        with pytest.raises(InvalidRequest, match=re.escape(said)):
            take(url, protocol)
