"""The command `slipway studio`: a server, a gateway and a browser, started and ended together.

The server listens on free ports and the gateway on a loopback address, so nobody else can reach them. The
gateway runs in this process until Ctrl-C; the server ends after it, so that running videos can store their
states first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import webbrowser
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from slipway_gateway.settings import DEFAULT_DATA, GatewaySettings
from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.system.standard_streams import print_line

if TYPE_CHECKING:
    from slipway_serving.triton.server import Server

_HOST = "127.0.0.1"
_WATCH_S = 0.5
# Without a screen, Python's module would open a browser of text in the terminal.
_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def studio(
    repository: Annotated[
        Path, typer.Option(help="Model repository: a folder of models, as `slipway export` writes it.")
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the page; 0 takes a free one.")
    ] = 8080,
    data: Annotated[Path, typer.Option(help="Folder of the videos and their database.")] = DEFAULT_DATA,
    models: Annotated[
        Path | None, typer.Option(help="Folder of trained words, which lets the page publish them.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="Checkpoint on which the page trains words, for example demo; needs --models."),
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address of the page, and open no browser.")
    ] = False,
    ready_timeout_s: Annotated[
        float,
        typer.Option(
            help="Longest time for all models together to load, in seconds.", min=0, callback=checked_option
        ),
    ] = 600.0,
) -> None:
    """Start a server, a gateway and the studio, a web page, on this machine, until Ctrl-C."""
    from slipway_gateway.process import listen, serve
    from slipway_serving.triton.server import Server, ServerConfig

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    # Wrong options are reported before the models load.
    listen(_HOST, port).close()
    if backbone is not None and models is None:
        raise InvalidRequest("studio: models must be given with backbone, got none; try --models trained")
    config = ServerConfig(
        repository,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        ready_timeout_s=ready_timeout_s,
        model_control="none" if models is None else "explicit",
    )
    ended = threading.Event()
    try:
        with Server(config, _print_error, _print_error) as server:
            threading.Thread(target=_stop_with, args=(server, ended), daemon=True).start()
            settings = _settings(server, repository, port, data, models, backbone)
            serve(settings, lambda address: _announce(server, address, opens=not no_browser))
            ended.set()
            if server.failure is not None:
                raise server.failure
    except KeyboardInterrupt:
        pass
    finally:
        ended.set()
    _print_error("stopped")


def _settings(
    server: Server, repository: Path, port: int, data: Path, models: Path | None, backbone: str | None
) -> GatewaySettings:
    """Return the settings of a gateway in front of a server of this machine."""
    trains = models is not None
    return GatewaySettings(
        triton=(server.grpc_url,),
        host=_HOST,
        port=port,
        data=data,
        triton_metrics_port=server.config.metrics_port,
        repository=repository if trains else None,
        models=models,
        backbone=backbone,
        control=server.http_url if trains else None,
        control_token_file=server.control_token_file if trains else None,
    )


def _announce(server: Server, address: str, *, opens: bool) -> None:
    """Print the addresses, and open the page in the user's browser where there is one."""
    for name, value in {"studio": address, "API": f"{address}/docs", "grpc": server.grpc_url}.items():
        print_line(f"{typer.style(f'{name:8}', dim=True)} {value}")
    print_line("ready; Ctrl-C ends it")
    sys.stdout.flush()
    if opens and (sys.platform != "linux" or any(os.environ.get(name) for name in _SCREENS)):
        # A browser that is the first of its kind may keep the caller until it is closed.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _stop_with(server: Server, ended: threading.Event) -> None:
    """End the gateway when the server is down for good."""
    while not ended.wait(_WATCH_S):
        if server.failure is not None:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stop the server while it starts; the gateway has handlers of its own."""
    raise KeyboardInterrupt


def _print_error(line: str, end: str = "\n") -> None:
    print_line(line, err=True, end=end)
