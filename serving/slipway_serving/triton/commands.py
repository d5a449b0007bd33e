"""The command `slipway serve`: run the embedded Triton in the foreground until a signal ends it."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from slipway_serving.protocol.durations import checked_option
from slipway_serving.protocol.texts import printable
from slipway_serving.system.standard_streams import print_line

if TYPE_CHECKING:
    from slipway_serving.triton.server import Server

_PORT = {"min": 0, "max": 65535}


def serve(
    repository: Annotated[
        Path, typer.Option(help="Model repository: a folder of models, as `slipway export` writes it.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0, or :: with IPv6, lets other machines in.")
    ] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="HTTP port, 0 picks a free one.", **_PORT)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port, 0 picks a free one.", **_PORT)] = 8001,
    metrics_port: Annotated[
        int, typer.Option(help="Prometheus metrics port, 0 picks a free one.", **_PORT)
    ] = 8002,
    probe_port: Annotated[
        int | None,
        typer.Option(
            help="Port of GET /ready and /live, which look at the processes of Python models too; 0 picks a"
            " free one. By default there is none.",
            **_PORT,
        ),
    ] = None,
    exit_timeout_s: Annotated[
        int,
        typer.Option(
            help="Seconds that in-flight requests get to finish on SIGTERM or Ctrl-C.",
            min=0,
            callback=checked_option,
        ),
    ] = 30,
    ready_timeout_s: Annotated[
        float,
        typer.Option(help="Seconds that all models together get to load.", min=0, callback=checked_option),
    ] = 600.0,
    model_control: Annotated[
        Literal["none", "explicit"],
        typer.Option(help="explicit lets `slipway manage` and `--triton` load models while the server runs."),
    ] = "none",
    control_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that Triton's administrative APIs need; by default a key of the"
            " server's own, in a file that only its user can read."
        ),
    ] = None,
    response_cache_mib: Annotated[
        int | None,
        typer.Option(
            help="Memory for answers to repeated requests of models that allow it (prompts' embeddings), MiB;"
            " 0 keeps none. 64 by default, and 0 with explicit model control.",
            min=0,
        ),
    ] = None,
    trace_otlp: Annotated[
        str | None,
        typer.Option(
            help="Send traces of requests to this OpenTelemetry endpoint (OTLP over HTTP), for example"
            " http://localhost:4318/v1/traces.",
            metavar="URL",
        ),
    ] = None,
    trace_every: Annotated[int, typer.Option(help="Trace one request in this many.", min=1)] = 1,
    limits: Annotated[
        Path | None,
        typer.Option(help="YAML file of what requests may ask of each model at most.", metavar="FILE"),
    ] = None,
    log_file: Annotated[
        Path | None, typer.Option(help="Keep Triton's log here; without it only a failure keeps one.")
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option(
            help="Say on stderr which models are loading and how far; by default where that is a terminal."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Show Triton's log on stderr.")] = False,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="After --: further arguments of tritonserver, as --name=value.", metavar="-- ARGUMENTS"
        ),
    ] = None,
) -> None:
    """Serve a model repository by NVIDIA Triton until SIGTERM or Ctrl-C."""
    from slipway_serving.protocol.errors import SlipwayError
    from slipway_serving.triton.control import read_token
    from slipway_serving.triton.server import Server, ServerConfig

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        config = ServerConfig(
            repository=repository,
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            probe_port=probe_port,
            exit_timeout_s=exit_timeout_s,
            ready_timeout_s=ready_timeout_s,
            model_control=model_control,
            control_token=read_token(control_token_file) if control_token_file else None,
            response_cache_mib=response_cache_mib,
            trace_otlp=trace_otlp,
            trace_every=trace_every,
            limits=limits,
            log_path=log_file,
            arguments=tuple(arguments or ()),
        )
        shown = sys.stderr.isatty() if progress is None else progress
        _run(Server(config, _warn if shown else None, _warn), verbose=verbose)
    except SlipwayError as error:
        lines = [printable(line) for line in str(error).split("\n")]  # one for each model that failed
        _warn("\n".join(["error: " + lines[0], *lines[1:]]))
        raise typer.Exit(error.exit_code) from None


def drain(
    metrics: Annotated[
        str, typer.Option(help="Metrics endpoint of the server.", metavar="HOST:PORT")
    ] = "localhost:8002",
    timeout_s: Annotated[
        float,
        typer.Option(
            help="Longest wait for the requests under way, seconds.", min=0, callback=checked_option
        ),
    ] = 30.0,
    refuse: Annotated[
        bool,
        typer.Option(
            "--refuse",
            help="Have the server refuse what comes from now on, so that callers go to another: pipelines at"
            " once, all Python models when nothing is under way. On the server's own machine only.",
        ),
    ] = False,
) -> None:
    """Wait until a server's pipelines have nothing to do, before something stops it."""
    from slipway_serving.protocol.errors import NotReady
    from slipway_serving.system.server_folder import runtime_folder_at
    from slipway_serving.triton import drain as draining

    port = metrics.rpartition(":")[2]
    folder = runtime_folder_at(int(port)) if refuse and port.isdigit() else None
    left = draining.drain(f"http://{metrics}/metrics", timeout_s, folder)
    if left is None:
        raise NotReady(f"drain: metrics must be readable at {metrics}, got no answer; try --metrics")
    if left:
        raise NotReady(f"drain: pipelines must end within {timeout_s:g} s, got {left} request(s) under way")
    if refuse and folder is None:  # said now, since to wait is better than nothing
        raise NotReady(
            f"drain: server must run on this machine to be told to refuse, got none at {metrics};"
            " try it there, or without --refuse"
        )
    typer.echo("idle")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the foreground work; a second signal ends the wait for in-flight requests too."""
    raise KeyboardInterrupt


def _warn(line: str, end: str = "\n") -> None:
    print_line(line, err=True, end=end)


def _warn_of_log(line: str) -> None:
    """Print what the server's log gained; callers' texts are in it."""
    text = line.removesuffix("\n")
    _warn(printable(text), end=line[len(text) :])


def _run(server: Server, *, verbose: bool) -> None:
    """Start, report, wait, stop.

    Raises:
        SlipwayError: the server could not start, or ended by itself too often.
    """
    from slipway_serving.triton.server_log import follow

    done = threading.Event()
    follower = threading.Thread(target=follow, args=(server.log_path, _warn_of_log, done))
    try:
        if verbose:
            follower.start()
        with server:
            _report(server)
            while server.failure is None:
                done.wait(0.2)
            raise server.failure
    except KeyboardInterrupt:
        _warn("stopped")
    finally:
        done.set()
        if verbose:
            follower.join()


def _report(server: Server) -> None:
    """Say on stdout where the server listens and what it serves."""
    own_key = server.control_token_file
    for name, value in {
        "http": f"http://{server.http_url}",
        "grpc": server.grpc_url,
        "metrics": server.metrics_url,
        **({"probes": server.probe_url} if server.probe_url is not None else {}),
        **({"key": f"{own_key}"} if own_key is not None else {}),
        "models": ", ".join(server.models()),
    }.items():
        print_line(f"{typer.style(f'{name:8}', dim=True)} {value}")
    if not server.token_hidden:
        print_line("key is on tritonserver's command line: no process may be traced here")
    print_line("ready")
