"""The command `slipway manage`: the management API in the foreground until a signal ends it."""

from __future__ import annotations

import contextlib
import signal
import socket
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_export.commands.server_options import control_token_option, triton_option
from slipway_export.commands.sources import trained_family
from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from fastapi import FastAPI


def manage(
    repository: Annotated[Path, typer.Option(help="Triton model repository that receives the exports.")],
    models: Annotated[Path, typer.Option(help="Folder of the trained models.")] = Path("trained"),
    family: Annotated[str, typer.Option(help="Family of the trained models.", metavar="FAMILY")] = "wakeword",
    triton: Annotated[str | None, triton_option()] = None,
    control_token_file: Annotated[Path | None, control_token_option()] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address requires --token-file.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free one.", min=0, max=65535)
    ] = 8003,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the bearer token that callers must present.")
    ] = None,
    export_timeout_s: Annotated[
        float, typer.Option(help="Longest time for one export, in seconds.", min=1, callback=checked_option)
    ] = 1800.0,
) -> None:
    """Serve the management API of trained models until SIGTERM or Ctrl-C; /docs documents it."""
    from slipway_export.families import family_named
    from slipway_export.trained_models import Library
    from slipway_gateway.trained_models.app import create_app
    from slipway_gateway.trained_models.management import Management
    from slipway_serving.triton.control import ModelControl, read_token

    control_token = read_token(control_token_file) if control_token_file else None
    management = Management(
        family=trained_family(family_named(family)),
        library=Library(models),
        repository=repository,
        triton=ModelControl(triton, control_token) if triton else None,
        export_limit_s=export_timeout_s,
    )
    token = read_token(token_file) if token_file else None
    run(create_app(management, token, host), host, port)


def run(app: FastAPI, host: str, port: int) -> None:
    """Serve the API until a signal ends it.

    Raises:
        InvalidRequest: The server cannot listen on the address.
    """
    import uvicorn

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    with _listener(host, port) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"management API on http://{shown}:{port}, documented at /docs")
        config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_graceful_shutdown=10)
        # Uvicorn's own signal handler stops the server and then calls ours.
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    typer.echo("stopped", err=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128
        )
    except OSError as error:
        raise InvalidRequest(
            f"manage: host and port must be available, got {host} and {port} ({error}); try --port"
        ) from None
