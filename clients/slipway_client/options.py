"""Options that every command which talks to a server has."""

from __future__ import annotations

from typing import Annotated

import typer

from slipway_client.generation import Protocol

DEFAULT_URLS = {"grpc": "localhost:8001", "http": "localhost:8000"}
Url = Annotated[
    str | None,
    typer.Option(
        help="Server; by default localhost:8001 for grpc, localhost:8000 for http.", metavar="HOST:PORT"
    ),
]
SpokenProtocol = Annotated[Protocol, typer.Option(help="How to talk to the server.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
