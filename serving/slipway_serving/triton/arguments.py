"""Command line arguments of `tritonserver`: restricted APIs, response cache, tracing and a user's own.

:class:`~slipway_serving.triton.config.ServerConfig` validates a configuration with these functions, and
:class:`~slipway_serving.triton.server.Server` starts Triton with the arguments that they yield.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from slipway_serving.runtime.request_parameters import GRPC_MARK
from slipway_serving.triton.control import CONTROL_HEADER, SUPERVISOR_HEADER

RESTRICTED_APIS = ("model-repository", "shared-memory", "trace", "logging")
"""Groups of Triton's APIs that need the control token, since they change the server.

A client with access to them can load code (model-repository), read and write memory of other processes on the
machine (shared-memory), or make the server write to files or hosts of its choice (trace, logging). Health,
metadata, inference, model-config and statistics stay open.
"""
# Arguments that `slipway serve` sets itself, with what to use instead of each.
_RESERVED = {
    "model-repository": "--repository",
    "model-store": "--repository",
    "backend-directory": "another installation of Triton",
    **{f"{service}-port": f"--{service}-port" for service in ("http", "grpc", "metrics")},
    **{f"{service}-address": "--host" for service in ("http", "grpc", "metrics")},
    "exit-timeout-secs": "--exit-timeout-s",
    "exit-on-error": "a repository whose models load",
    "model-control-mode": "--model-control",
    "load-model": "--model-control",
    "cache-directory": "another installation of Triton",
    "cache-config": "--response-cache-mib",
    "http-restricted-api": "--control-token-file",
    "grpc-restricted-protocol": "--control-token-file",
}
_FILE_ARGUMENTS = ("grpc-server-cert", "grpc-server-key", "grpc-root-cert")
_SHARED_MEMORY_PREFIX = "python,shm-region-prefix-name"
_GRPC_FORWARDING = "--grpc-header-forward-pattern="


def token_restrictions(token: str) -> Iterator[str]:
    """Yield the arguments that restrict the administrative APIs to callers with a token.

    HTTP requests carry the token in the header ``slipway-control``, gRPC requests in the metadata
    ``triton-grpc-protocol-slipway-control``.
    """
    yield from _restrictions(RESTRICTED_APIS, CONTROL_HEADER, token)


def supervisor_restrictions(key: str, token: str) -> Iterator[str]:
    """Yield the arguments that allow only the supervisor to load and unload models.

    Args:
        key: Secret of the supervisor.
        token: Token for the other administrative APIs.
    """
    model_repository, *others = RESTRICTED_APIS
    yield from _restrictions([model_repository], SUPERVISOR_HEADER, key)
    yield from _restrictions(others, CONTROL_HEADER, token)


def _restrictions(groups: Sequence[str], header: str, token: str) -> Iterator[str]:
    yield f"--http-restricted-api={','.join(groups)}:{header}={token}"
    yield f"--grpc-restricted-protocol={','.join(groups)}:{header}={token}"


def response_cache_arguments(folder: Path, size_bytes: int) -> Iterator[str]:
    """Yield the arguments that enable Triton's response cache.

    The cache serves only models whose configuration has ``response_cache { enable: true }``. It evicts the
    least recently used answer first.

    Args:
        folder: Folder of Triton's cache libraries.
        size_bytes: Size of the cache for all models together, in bytes.
    """
    yield f"--cache-directory={folder}"
    yield f"--cache-config=local,size={size_bytes}"


def tracing_arguments(url: str, every: int) -> Iterator[str]:
    """Yield the arguments that make Triton send traces of requests to an OpenTelemetry collector.

    Args:
        url: URL of the collector's OTLP endpoint over HTTP.
        every: Sampling interval: one request in this many is traced.
    """
    yield "--trace-config=mode=opentelemetry"
    yield "--trace-config=level=TIMESTAMPS"
    yield "--trace-config=count=-1"
    yield f"--trace-config=rate={every}"
    yield f"--trace-config=opentelemetry,url={url}"
    yield "--trace-config=opentelemetry,resource=service.name=slipway"


def tracing_problems(url: str | None, every: int) -> list[str]:
    """Return a sentence for each rule that the tracing settings break."""
    problems = []
    if url is not None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.strip("/"):
            problems.append(
                f"trace_otlp must be an OTLP endpoint over HTTP, got {url!r}; "
                "try http://localhost:4318/v1/traces"
            )
    if every < 1:
        problems.append(f"trace_every must be 1 or more, got {every}; try 1 for every request")
    return problems


def reachable_host(host: str) -> str:
    """Return the host part of a URL that reaches a server on this machine that listens on `host`."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host


def bind_address(service: str, address: str) -> str:
    """Return an address to listen on in the form that one of Triton's services needs.

    Args:
        service: Name of the service: "http", "grpc" or "metrics".
        address: IPv4 or IPv6 address. At ``::`` gRPC listens on IPv4 too; HTTP and metrics do not.
    """
    if ":" not in address:
        return address
    # Triton's HTTP library, libevhtp, needs the prefix.
    return f"[{address}]" if service == "grpc" else f"ipv6:{address}"


def forwarded_arguments(further: Sequence[str]) -> Iterator[str]:
    """Yield a user's further arguments, and the pattern of gRPC metadata that Triton forwards to models.

    Triton accepts only one pattern, so this joins the user's pattern and ours, which marks gRPC requests.
    """
    patterns = [GRPC_MARK]
    for argument in further:
        if argument.startswith(_GRPC_FORWARDING):
            patterns.append(argument.removeprefix(_GRPC_FORWARDING))
        else:
            yield argument
    yield _GRPC_FORWARDING + "|".join(f"({pattern})" for pattern in patterns)


def extra_argument_problems(arguments: Sequence[str]) -> list[str]:
    """Return a sentence for each of a user's further arguments that Triton must not be started with."""
    problems = []
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name or not equals:
            problems.append(
                f"further arguments must be of the form --name=value, got {argument!r}; "
                "try -- --rate-limit=execution_count"
            )
        elif name in _RESERVED:
            problems.append(
                f"further arguments must not repeat what slipway sets, got --{name}; try {_RESERVED[name]}"
            )
        elif name in _FILE_ARGUMENTS and not value.startswith("/"):
            problems.append(
                "further arguments must name files by absolute paths (Triton runs in a folder of its own), "
                f"got --{name}={value}; try --{name}=$PWD/{value}"
            )
        elif name.endswith("-header-forward-pattern") and (problem := _pattern_problem(name, value)):
            problems.append(problem)
        elif name == "backend-config" and value.startswith(_SHARED_MEMORY_PREFIX):
            problems.append(
                f"further arguments must not set {_SHARED_MEMORY_PREFIX}, by which slipway finds the shared"
                f" memory to free, got --{name}={value}; try without it"
            )
    return problems


def _pattern_problem(name: str, pattern: str) -> str | None:
    """Return an error sentence if Triton must not forward the headers of a pattern to models, else None."""
    try:
        forges_mark = re.search(pattern, GRPC_MARK) and name.startswith("http")
    except re.error as error:
        return f"{name} must be a regular expression, got {pattern!r} ({error})"
    if forges_mark:
        return (
            f"{name} must not match {GRPC_MARK}, which marks requests that came over gRPC, got {pattern!r};"
            " try the names of your own headers"
        )
    return None
