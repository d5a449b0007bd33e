"""Options shared by the commands that call a server or write output files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway_client.generation import Protocol

URL_VARIABLE = "SLIPWAY_URL"
"""Environment variable with the default of `--url`, for commands that call a running server."""
_URL_HELP = "Server: its gRPC or its HTTP port, perhaps with grpc://, grpcs://, http:// or https:// before it"
Url = Annotated[
    str | None,
    typer.Option(
        help=f"{_URL_HELP}; by default localhost:8001, with --protocol http localhost:8000.",
        metavar="HOST:PORT",
        envvar=URL_VARIABLE,
    ),
]
HttpUrl = Annotated[
    str | None,
    typer.Option(help=f"{_URL_HELP}; by default localhost:8000.", metavar="HOST:PORT", envvar=URL_VARIABLE),
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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace output files that exist.")]
