"""Configuration of a server, validated when it is created and before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from slipway_serving.protocol import durations
from slipway_serving.protocol.errors import raise_all
from slipway_serving.triton.arguments import extra_argument_problems, tracing_problems
from slipway_serving.triton.install.setup import OnnxRuntimeBackend

URL_SCHEMES = ("s3", "gs", "as")
"""Schemes of repositories that Triton reads itself: S3, Google Cloud Storage and Azure Storage."""
ModelControlMode = Literal["none", "explicit"]
OnStop = Literal["finish", "checkpoint"]
_MIB = 1 << 20
# This holds eight prompts of 512 tokens of width 4096, or a hundred prompts of the usual 40 tokens.
_RESPONSE_CACHE_MIB = 64


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of a server: what to serve and where.

    Attributes:
        repository: Model repository: a folder of model folders, or a URL that Triton reads itself
            (:data:`URL_SCHEMES`).
        host: IPv4 or IPv6 address to listen on, or a host name that resolves to one. Other machines cannot
            reach a server that listens on 127.0.0.1 or ::1.
        http_port: Port of the HTTP endpoint; 0 picks a free port, as for the other ports.
        grpc_port: Port of the gRPC endpoint, see `http_port`.
        metrics_port: Port of the Prometheus metrics, see `http_port`.
        probe_port: Port of :mod:`slipway_serving.triton.probes`, see `http_port`; None opens none.
        exit_timeout_s: Longest time for in-flight requests to finish when the server stops, in seconds.
        on_stop: Treatment of running videos when the server stops. "finish" waits for them; "checkpoint"
            stops each at its next step boundary and sends its caller the state, with which another server
            continues it.
        ready_timeout_s: Longest time for all models together to load, in seconds.
        exit_on_error: True if one model that fails to load fails the start.
        model_control: Mode of model control. "none" serves the models that the repository has at the start;
            "explicit" also accepts requests to load and unload models while the server runs.
        control_token: Token that such requests must carry (see :mod:`slipway_serving.triton.control`), as
            must every use of the APIs that change the server
            (:data:`slipway_serving.triton.arguments.RESTRICTED_APIS`); None makes a new token per server.
        response_cache_mib: Size of the response cache in MiB, used by models whose configuration allows it; 0
            disables it. None means 64, or 0 with explicit model control: Triton 2.51 would keep serving
            cached answers of the old model after a model is reloaded.
        trace_otlp: OTLP endpoint over HTTP that receives traces of requests; None traces nothing.
        trace_every: Sampling interval of traces: one request in this many is traced.
        log_verbose: Triton's verbosity, 0 or more.
        triton_dir: Folder of an installed Triton; None finds one, see
            :func:`slipway_serving.triton.install.locate.find_triton`.
        onnxruntime_backend: Backend that runs ONNX graphs: "native" is the Triton's own C++ backend, "python"
            ours; None takes the C++ backend where there is one.
        engine_cache: Folder for the engines that ONNX Runtime builds with TensorRT while models load; None
            keeps them in the server's own folder, which ends with the server.
        limits: File with upper limits for requests, see :mod:`slipway_serving.runtime.limits`; None adds no
            limits to those of the models.
        log_path: Log file, which stays after the stop; None keeps a log only if something failed.
        arguments: Further arguments of `tritonserver`, e.g. `--rate-limit=execution_count`, except those that
            the fields above determine.
    """

    repository: Path | str
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    probe_port: int | None = None
    exit_timeout_s: int = 30
    on_stop: OnStop = "finish"
    ready_timeout_s: float = 600.0
    exit_on_error: bool = True
    model_control: ModelControlMode = "none"
    control_token: str | None = field(default=None, repr=False)
    response_cache_mib: int | None = None
    trace_otlp: str | None = None
    trace_every: int = 1
    log_verbose: int = 0
    triton_dir: Path | None = None
    onnxruntime_backend: OnnxRuntimeBackend | None = None
    engine_cache: Path | None = None
    limits: Path | None = None
    log_path: Path | None = None
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be a port number 0 to 65535, got {port}"
            for name, port in self.ports.items()
            if not 0 <= port <= 65535
        ]
        if isinstance(self.repository, str) and self.repository.partition("://")[0] not in URL_SCHEMES:
            problems.append(
                f"repository must be a folder, or a URL that begins with {', '.join(URL_SCHEMES)} and ://,"
                f" got {self.repository}"
            )
        given = [port for port in self.ports.values() if port]
        if len(set(given)) < len(given):
            problems.append(f"ports must differ from each other, got {given}")
        for name in ("exit_timeout_s", "ready_timeout_s"):
            if problem := durations.problem(name, getattr(self, name), zero=True):
                problems.append(problem)
        if self.log_verbose < 0:
            problems.append(f"log_verbose must be 0 or more, got {self.log_verbose}")
        if self.model_control not in get_args(ModelControlMode):
            problems.append(
                f"model_control must be one of {', '.join(get_args(ModelControlMode))}, got"
                f" {self.model_control!r}"
            )
        if self.on_stop not in get_args(OnStop):
            problems.append(f"on_stop must be one of {', '.join(get_args(OnStop))}, got {self.on_stop!r}")
        if self.onnxruntime_backend not in (None, *get_args(OnnxRuntimeBackend)):
            problems.append(
                f"onnxruntime_backend must be one of {', '.join(get_args(OnnxRuntimeBackend))}, got"
                f" {self.onnxruntime_backend!r}"
            )
        cache_mib = self.response_cache_mib or 0
        if cache_mib < 0 or (cache_mib and self.model_control != "none"):
            problems.append(
                "response_cache_mib must be 0 or more, and 0 with explicit model control (Triton would keep"
                f" answering from the cache of the old model after a reload), got {cache_mib}"
            )
        problems += tracing_problems(self.trace_otlp, self.trace_every)
        problems += extra_argument_problems(self.arguments)
        raise_all("server", problems)

    @property
    def folder(self) -> Path | None:
        """Folder of the repository, with links resolved; None if the repository is a URL."""
        return None if isinstance(self.repository, str) else self.repository.resolve()

    @property
    def response_cache_bytes(self) -> int:
        """Size of the response cache in bytes; 0 if there is none."""
        default = _RESPONSE_CACHE_MIB if self.model_control == "none" else 0
        return (default if self.response_cache_mib is None else self.response_cache_mib) * _MIB

    @property
    def traces(self) -> bool:
        """True if requests are traced, into a file or to a collector."""
        return self.trace_otlp is not None or any("--trace-config" in each for each in self.arguments)

    @property
    def ports(self) -> dict[str, int]:
        """Ports to listen on, by field name."""
        probe = {} if self.probe_port is None else {"probe_port": self.probe_port}
        return {
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
            **probe,
        }
