"""Options that every command which talks to a server has."""

from __future__ import annotations

from typing import Annotated

import typer

from slipway_client.generation import Protocol

Url = Annotated[
    str | None,
    typer.Option(
        help="Server: its gRPC or its HTTP port, perhaps with grpc://, grpcs://, http:// or https:// before"
        " it; by default localhost:8001, with --protocol http localhost:8000.",
        metavar="HOST:PORT",
    ),
]
SpokenProtocol = Annotated[
    Protocol | None, typer.Option(help="How to talk to the server; by default as its port does.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
