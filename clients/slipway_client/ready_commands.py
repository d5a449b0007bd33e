"""`slipway ready`: whether a running server would serve, as an exit code.

What a container's HEALTHCHECK and a Kubernetes exec probe run, and what a script waits for.
"""

from __future__ import annotations

from typing import Annotated

import typer

from slipway_client.address import address_of
from slipway_client.options import TlsFolder
from slipway_serving.errors import NotReady


def ready(
    url: Annotated[
        str | None,
        typer.Option(
            help="Server: its gRPC or its HTTP port, perhaps with grpc://, grpcs://, http:// or https://"
            " before it; by default localhost:8000.",
            metavar="HOST:PORT",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Ask for one model; by default for the server with all of its models.")
    ] = None,
    tls: TlsFolder = None,
    timeout_s: Annotated[float, typer.Option(help="Longest wait for an answer, seconds.", min=0.1)] = 3.0,
) -> None:
    """Tell whether a running server is ready: exit 0, or 1 with the reason."""
    from slipway_client import Client

    address = address_of(url, None if url else "http", timeout_s)
    with Client(*address, connect_timeout_s=timeout_s, tls=tls) as client:
        if not client.is_ready(model):
            raise NotReady(
                f"ready: {model or 'the server'} must be ready at {address.url}, got no or another answer;"
                " try the server's log"
            )
    typer.echo("ready")
