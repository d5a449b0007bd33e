"""Options shared by the commands that call a server or write output files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway_client.generation import Protocol

URL_VARIABLE = "SLIPWAY_URL"
"""Environment variable with the default of `--url`, for commands that call a running server."""
_URL_HELP = (
    "Address of the server's gRPC or HTTP port, with or without grpc://, grpcs://, http:// or https://"
)
Url = Annotated[
    str | None,
    typer.Option(
        help=f"{_URL_HELP}; by default, localhost:8001, or localhost:8000 with --protocol http.",
        metavar="HOST:PORT",
        envvar=URL_VARIABLE,
    ),
]
HttpUrl = Annotated[
    str | None,
    typer.Option(help=f"{_URL_HELP}; by default, localhost:8000.", metavar="HOST:PORT", envvar=URL_VARIABLE),
]
TlsFolder = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        help="Folder with ca.crt and, for servers that require a client certificate, tls.crt and tls.key; for"
        " URLs with grpcs:// or https://; by default, the system's certificate authorities.",
        metavar="DIR",
    ),
]
SpokenProtocol = Annotated[
    Protocol | None, typer.Option(help="Protocol of the server; by default, the one that its port speaks.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Overwrite existing output files.")]
