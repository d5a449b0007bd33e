"""Options that every command which talks to a server has."""

from __future__ import annotations

from pathlib import Path
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
TlsFolder = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        help="Folder with ca.crt, and tls.crt with tls.key where the server asks who we are, for a URL that"
        " begins with grpcs:// or https://; by default the system's authorities.",
        metavar="DIR",
    ),
]
SpokenProtocol = Annotated[
    Protocol | None, typer.Option(help="How to talk to the server; by default as its port does.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
