"""Arguments of `tritonserver`: what closes its administrative APIs, what makes it trace, what a user may add.

:class:`~slipway_serving.server_config.ServerConfig` checks by these; :class:`~slipway_serving.server.Server`
starts Triton so.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path

from slipway_serving.control import CONTROL_HEADER, SUPERVISOR_HEADER
from slipway_serving.request_parameters import GRPC_MARK

CLOSED_APIS = ("model-repository", "shared-memory", "trace", "logging")
"""Groups of Triton's API that need the control token: those that change the server.

Whoever may use them loads code (model-repository), reads and writes memory of other processes on the machine
(shared-memory), or has the server write to files or hosts of their choice (trace, logging). Health, metadata,
inference, model-config and statistics stay open.
"""
# What `slipway serve` says itself, and by which flag of its own.
_OURS = {
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
_FILES = ("grpc-server-cert", "grpc-server-key", "grpc-root-cert")
_SHARED_MEMORY_PREFIX = "python,shm-region-prefix-name"
_GRPC_FORWARDING = "--grpc-header-forward-pattern="


def closed_apis(token: str) -> Iterator[str]:
    """Yield the arguments that close the administrative APIs to those who do not know a token.

    Over HTTP it comes in the header ``slipway-control``, over gRPC in the metadata
    ``triton-grpc-protocol-slipway-control``.
    """
    yield from _closed(CLOSED_APIS, CONTROL_HEADER, token)


def closed_but_to_us(key: str, token: str) -> Iterator[str]:
    """Yield the arguments that close the orders to load and unload models to everyone but the supervisor.

    Args:
        key: the supervisor's.
        token: what the other administrative APIs need.
    """
    orders, *others = CLOSED_APIS
    yield from _closed([orders], SUPERVISOR_HEADER, key)
    yield from _closed(others, CONTROL_HEADER, token)


def _closed(groups: Sequence[str], header: str, token: str) -> Iterator[str]:
    yield f"--http-restricted-api={','.join(groups)}:{header}={token}"
    yield f"--grpc-restricted-protocol={','.join(groups)}:{header}={token}"


def response_cache(folder: Path, size_bytes: int) -> Iterator[str]:
    """Yield the arguments that make Triton answer repeated requests from memory.

    Only of models whose configuration has ``response_cache { enable: true }``. What was asked for longest ago
    goes first.

    Args:
        folder: of Triton's cache libraries.
        size_bytes: for the answers of all models together.
    """
    yield f"--cache-directory={folder}"
    yield f"--cache-config=local,size={size_bytes}"


def tracing(url: str, every: int) -> Iterator[str]:
    """Yield the arguments that make Triton send traces of requests to an OpenTelemetry collector.

    Args:
        url: of the collector's OTLP endpoint over HTTP.
        every: one request in this many is traced.
    """
    yield "--trace-config=mode=opentelemetry"
    yield "--trace-config=level=TIMESTAMPS"
    yield "--trace-config=count=-1"
    yield f"--trace-config=rate={every}"
    yield f"--trace-config=opentelemetry,url={url}"
    yield "--trace-config=opentelemetry,resource=service.name=slipway"


def tracing_problems(url: str | None, every: int) -> list[str]:
    """Say which rules the settings of tracing break."""
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


def bind_address(service: str, address: str) -> str:
    """Return an address to listen on as one of Triton's services takes it.

    Args:
        service: "http", "grpc" or "metrics".
        address: An IPv4 or IPv6 address. At ``::`` gRPC listens on IPv4 too; HTTP and metrics do not.
    """
    if ":" not in address:
        return address
    return f"[{address}]" if service == "grpc" else f"ipv6:{address}"  # libevhtp's form


def forwarding(further: Sequence[str]) -> Iterator[str]:
    """Yield the arguments that a user adds, with the metadata of gRPC that Triton must hand to the models.

    Triton takes one pattern only, so ours, which marks requests that came over gRPC, joins the user's.
    """
    patterns = [GRPC_MARK]
    for argument in further:
        if argument.startswith(_GRPC_FORWARDING):
            patterns.append(argument.removeprefix(_GRPC_FORWARDING))
        else:
            yield argument
    yield _GRPC_FORWARDING + "|".join(f"({pattern})" for pattern in patterns)


def further_problems(arguments: Sequence[str]) -> list[str]:
    """Say which of a user's own arguments Triton cannot be started with."""
    problems = []
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name or not equals:
            problems.append(
                f"further arguments must be of the form --name=value, got {argument!r}; "
                "try -- --rate-limit=execution_count"
            )
        elif name in _OURS:
            problems.append(
                f"further arguments must be none that slipway gives, got --{name}; try {_OURS[name]}"
            )
        elif name in _FILES and not value.startswith("/"):
            problems.append(
                "further arguments must name files by absolute paths (Triton runs in a folder of its own), "
                f"got --{name}={value}; try --{name}=$PWD/{value}"
            )
        elif name.endswith("-header-forward-pattern") and (wrong := _pattern_problem(name, value)):
            problems.append(wrong)
        elif name == "backend-config" and value.startswith(_SHARED_MEMORY_PREFIX):
            problems.append(
                f"further arguments must leave {_SHARED_MEMORY_PREFIX} alone, by which slipway finds what "
                "to free; try without it"
            )
    return problems


def _pattern_problem(name: str, pattern: str) -> str | None:
    """Return why Triton cannot hand on the headers of a pattern to the models."""
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
