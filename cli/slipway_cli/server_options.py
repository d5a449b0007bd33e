"""Options shared by the commands that call a server or write output files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipway_client.address import Address, address_of, stated_protocol
from slipway_client.generation import Protocol
from slipway_serving.protocol.errors import InvalidRequest

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
Urls = Annotated[
    str | None,
    typer.Option(
        help=f"{_URL_HELP}; by default, localhost:8001, or localhost:8000 with --protocol http. Several"
        " addresses are separated by commas: where a server shuts down, the next one continues its work.",
        metavar="HOST:PORT[,HOST:PORT]",
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


def server_of(url: str | None, protocol: Protocol | None) -> Address:
    """Return the addresses of the servers to call, and their protocol.

    Args:
        url: Value of `--url`: one address, or several separated by commas.
        protocol: Value of `--protocol`, or None.

    Raises:
        InvalidRequest: An address is invalid, or the addresses have several protocols.
        NotReady: A port answers HTTP but is not Triton.
    """
    if url is None or "," not in url:
        return address_of(url, protocol)
    urls = [each.strip() for each in url.split(",")]
    stated = {spoken for each in urls if (spoken := stated_protocol(each, protocol)) is not None}
    # A server that is down has no protocol to detect, so one that answers HTTP decides for all.
    if not stated:
        is_http = any(address_of(each).protocol == "http" for each in urls)
        return Address(",".join(urls), "http" if is_http else "grpc")
    if len(stated) > 1:
        raise InvalidRequest(
            f"url: all addresses must have one protocol, got {url!r}; try the gRPC ports of all servers"
        )
    return Address(",".join(urls), stated.pop())
