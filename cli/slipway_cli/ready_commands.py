"""The command `slipway ready`, whose exit code tells whether a running server is ready.

It is for a container's HEALTHCHECK, a Kubernetes exec probe, and scripts that wait for a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slipway_cli.server_options import HttpUrl, TlsFolder
from slipway_client.address import Address, address_of
from slipway_serving.protocol.command_output import Json, print_json
from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import NotReady

_POLL_S = 0.5


def ready(
    url: HttpUrl = None,
    model: Annotated[
        str | None, typer.Option(help="Model to check; by default, the server and all of its models.")
    ] = None,
    tls: TlsFolder = None,
    processes: Annotated[
        bool,
        typer.Option(
            "--processes",
            help="Also check that the process of each Python model is alive, which Triton does not report;"
            " only on the server's own machine.",
        ),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Check whether the server is live instead of ready.")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(help="Longest wait for an answer, in seconds.", min=0.1, callback=checked_option),
    ] = 3.0,
    wait_s: Annotated[
        float,
        typer.Option(
            help="Longest wait for a server that starts or loads models, in seconds; by default, none.",
            min=0,
            callback=checked_option,
        ),
    ] = 0.0,
    json: Json = False,
) -> None:
    """Check whether a running server is ready, or live; exit with 0, or with 1 and the reason."""
    address = _wait_until_ready(
        partial(_check, url, model, tls, timeout_s, live=live, processes=processes), wait_s
    )
    state = "live" if live else "ready"
    if json:
        print_json({"url": address.url, "protocol": address.protocol, "model": model, "state": state})
    else:
        typer.echo(state)


def _wait_until_ready(check: Callable[[], Address], wait_s: float) -> Address:
    """Repeat a check until it succeeds, the time is over, or waiting cannot help.

    Raises:
        NotReady: The last check failed; this is its error.
    """
    from slipway_client.retry import NotTriton, UnknownModel

    end_s = time.monotonic() + wait_s
    while True:
        try:
            return check()
        except (NotTriton, UnknownModel):
            raise
        except NotReady:
            if time.monotonic() >= end_s:
                raise
        time.sleep(_POLL_S)


def _check(
    url: str | None, model: str | None, tls: Path | None, timeout_s: float, *, live: bool, processes: bool
) -> Address:
    """Check the server once and return its address, whose protocol is known only once something listens."""
    from slipway_client import Client

    address = address_of(url, None if url else "http", timeout_s)
    with Client(*address, connect_timeout_s=timeout_s, tls=tls) as client:
        if live:
            client.check_live()
        else:
            client.check_ready(model)
    if processes:
        _check_processes(address.url)
    return address


def _check_processes(url: str) -> None:
    """Raise NotReady if a process is gone or about to end, or if the server is not on this machine."""
    from slipway_serving.system.process_state import check_processes
    from slipway_serving.system.server_folder import runtime_folder_of_process, tritonserver_at

    port = url.rpartition(":")[2]
    process = tritonserver_at(int(port)) if port.isdigit() else None
    if process is None:
        raise NotReady(
            f"ready: --processes must be used on the server's own machine, got no tritonserver here for {url}"
            "; try it there"
        )
    check_processes(process.pid, runtime_folder_of_process(process))
