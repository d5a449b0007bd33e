"""The commands `slipway serve`, which runs a Triton in the foreground, and `slipway drain`."""

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
        str,
        typer.Option(
            help="Model repository: a folder of models, as `slipway export` writes it, or a URL that Triton"
            " reads (s3://, gs://, as://).",
            metavar="DIR|URL",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 (IPv4) and :: (IPv6) accept other machines.")
    ] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(help="HTTP port; 0 picks a free port.", **_PORT)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0 picks a free port.", **_PORT)] = 8001,
    metrics_port: Annotated[
        int, typer.Option(help="Port of the Prometheus metrics; 0 picks a free port.", **_PORT)
    ] = 8002,
    probe_port: Annotated[
        int | None,
        typer.Option(
            help="Port of GET /ready and GET /live, which also check the processes of Python models; 0 picks"
            " a free port. Without this option, no such port is opened.",
            **_PORT,
        ),
    ] = None,
    exit_timeout_s: Annotated[
        int,
        typer.Option(
            help="Longest time for in-flight requests to finish after SIGTERM or Ctrl-C, in seconds.",
            min=0,
            callback=checked_option,
        ),
    ] = 30,
    on_stop: Annotated[
        Literal["finish", "checkpoint"],
        typer.Option(
            help="Treatment of running videos after SIGTERM or Ctrl-C: finish waits for them; checkpoint"
            " stops each at its next step boundary and sends its caller the state, with which another server"
            " continues it."
        ),
    ] = "finish",
    ready_timeout_s: Annotated[
        float,
        typer.Option(
            help="Longest time for all models together to load, in seconds.", min=0, callback=checked_option
        ),
    ] = 600.0,
    model_control: Annotated[
        Literal["none", "explicit"],
        typer.Option(
            help="explicit allows `slipway manage` and `--triton` to load models while the server runs."
        ),
    ] = "none",
    control_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the token that Triton's administrative APIs require. By default, the server makes"
            " a token and writes it to a file that only its user can read."
        ),
    ] = None,
    response_cache_mib: Annotated[
        int | None,
        typer.Option(
            help="Size of the cache of answers to repeated requests, in MiB, for models that allow it (text"
            " encoders, for example); 0 disables it. The default is 64, or 0 with explicit model control.",
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
    triton_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an installed Triton. By default, /opt/tritonserver (NGC's images), else that of"
            " the nvidia-pytriton wheel.",
            metavar="DIR",
            envvar="SLIPWAY_TRITON_DIR",
        ),
    ] = None,
    onnxruntime_backend: Annotated[
        Literal["native", "python"] | None,
        typer.Option(
            help="Backend that runs ONNX graphs: Triton's C++ backend, or Slipway's in Python. By default,"
            " the C++ backend where the Triton has one."
        ),
    ] = None,
    engine_cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the engines that ONNX Runtime builds with TensorRT while models load (`slipway"
            " export --provider tensorrt`). Without this option, they end with the server.",
            metavar="DIR",
        ),
    ] = None,
    limits: Annotated[
        Path | None,
        typer.Option(help="YAML file with upper limits for the requests to each model.", metavar="FILE"),
    ] = None,
    log_file: Annotated[
        Path | None,
        typer.Option(help="File for Triton's log. Without this option, a log is kept only after a failure."),
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option(
            help="Show on stderr which models are loading; by default only if stderr is a terminal."
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Show Triton's log on stderr.")] = False,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Further arguments of tritonserver as --name=value, after a --.", metavar="-- ARGUMENTS"
        ),
    ] = None,
) -> None:
    """Serve a model repository with NVIDIA Triton until SIGTERM or Ctrl-C."""
    from slipway_serving.protocol.errors import SlipwayError
    from slipway_serving.triton.control import read_token
    from slipway_serving.triton.server import Server, ServerConfig

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        config = ServerConfig(
            repository=repository if "://" in repository else Path(repository),
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            probe_port=probe_port,
            exit_timeout_s=exit_timeout_s,
            on_stop=on_stop,
            ready_timeout_s=ready_timeout_s,
            model_control=model_control,
            control_token=read_token(control_token_file) if control_token_file else None,
            response_cache_mib=response_cache_mib,
            trace_otlp=trace_otlp,
            trace_every=trace_every,
            triton_dir=triton_dir,
            onnxruntime_backend=onnxruntime_backend,
            engine_cache=engine_cache,
            limits=limits,
            log_path=log_file,
            arguments=tuple(arguments or ()),
        )
        shown = sys.stderr.isatty() if progress is None else progress
        _run(Server(config, _print_error if shown else None, _print_error), verbose=verbose)
    except SlipwayError as error:
        # The message has a line for each model that failed.
        lines = [printable(line) for line in str(error).split("\n")]
        _print_error("\n".join(["error: " + lines[0], *lines[1:]]))
        raise typer.Exit(error.exit_code) from None


def drain(
    metrics: Annotated[
        str, typer.Option(help="Metrics endpoint of the server.", metavar="HOST:PORT")
    ] = "localhost:8002",
    timeout_s: Annotated[
        float,
        typer.Option(help="Longest wait for running requests, in seconds.", min=0, callback=checked_option),
    ] = 30.0,
    refuse: Annotated[
        bool,
        typer.Option(
            "--refuse",
            help="Make the server refuse new requests, so that callers turn to another server: pipelines"
            " refuse at once, all Python models once no request runs. Works on the server's machine only.",
        ),
    ] = False,
    checkpoint: Annotated[
        bool,
        typer.Option(
            "--checkpoint",
            help="Make pipelines stop each video at its next step boundary instead of finishing it, and send"
            " its caller the state, with which another server continues it. Includes --refuse.",
        ),
    ] = False,
) -> None:
    """Wait until no pipeline of a server works on a request; run this before you stop the server."""
    from slipway_serving.protocol.errors import NotReady
    from slipway_serving.system.server_folder import runtime_folder_at
    from slipway_serving.triton import drain as draining

    port = metrics.rpartition(":")[2]
    refuse = refuse or checkpoint
    folder = runtime_folder_at(int(port)) if refuse and port.isdigit() else None
    left = draining.drain(f"http://{metrics}/metrics", timeout_s, folder, checkpoint=checkpoint)
    if left is None:
        raise NotReady(f"drain: metrics cannot be read at {metrics}; give the server's endpoint by --metrics")
    if left:
        raise NotReady(f"drain: {left} request(s) still run after {timeout_s:g} s; try a longer --timeout-s")
    # The wait needs no folder, so this error is raised only after it.
    if refuse and folder is None:
        flag = "--checkpoint" if checkpoint else "--refuse"
        raise NotReady(
            f"drain: {flag} needs a server on this machine, and none has its metrics at {metrics};"
            f" run the command on the server's machine, or without {flag}"
        )
    typer.echo("idle")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stop the server; a second signal also ends the wait for in-flight requests."""
    raise KeyboardInterrupt


def _print_error(line: str, end: str = "\n") -> None:
    print_line(line, err=True, end=end)


def _print_log_line(line: str) -> None:
    """Print a line of the server's log without control characters, since it contains callers' texts."""
    text = line.removesuffix("\n")
    _print_error(printable(text), end=line[len(text) :])


def _run(server: Server, *, verbose: bool) -> None:
    """Start the server, report where it listens, wait for a signal and stop it.

    Raises:
        SlipwayError: The server could not start, or died too often.
    """
    from slipway_serving.triton.server_log import follow

    done = threading.Event()
    follower = threading.Thread(target=follow, args=(server.log_path, _print_log_line, done))
    try:
        if verbose:
            follower.start()
        with server:
            _report(server)
            while server.failure is None:
                done.wait(0.2)
            raise server.failure
    except KeyboardInterrupt:
        _print_error("stopped")
    finally:
        done.set()
        if verbose:
            follower.join()


def _report(server: Server) -> None:
    """Print to stdout where the server listens and which models it serves."""
    key_file = server.control_token_file
    for name, value in {
        "http": f"http://{server.http_url}",
        "grpc": server.grpc_url,
        "metrics": server.metrics_url,
        **({"probes": server.probe_url} if server.probe_url is not None else {}),
        **({"key": f"{key_file}"} if key_file is not None else {}),
        "triton": server.triton,
        "models": ", ".join(server.models()),
    }.items():
        print_line(f"{typer.style(f'{name:8}', dim=True)} {value}")
    if not server.token_hidden:
        print_line("warning: every user of this machine can read the key on tritonserver's command line")
    print_line("ready")
