"""Command line of `tritonserver`, from the configuration of a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slipway_serving.system.server_processes import MODELS
from slipway_serving.triton.arguments import (
    bind_address,
    forwarded_arguments,
    response_cache_arguments,
    tracing_arguments,
)
from slipway_serving.triton.config import ServerConfig
from slipway_serving.triton.install.locate import TritonInstall
from slipway_serving.triton.install.versions import versioned_arguments


def server_arguments(
    config: ServerConfig, server_id: str, folder: Path, install: TritonInstall, *, use_response_cache: bool
) -> Iterator[str]:
    """Yield the arguments of `tritonserver` that contain no secrets.

    Args:
        config: Configuration of the server.
        server_id: ID that begins the names of the server's shared memory.
        folder: Folder of the server, with its backends and the link to the repository.
        install: Triton that is started.
        use_response_cache: True if the models' answers may be cached.
    """
    yield f"--model-repository={folder / MODELS if config.folder is not None else config.repository}"
    yield f"--backend-directory={folder / 'backends'}"
    yield f"--backend-config=python,shm-region-prefix-name={server_id}"
    for service in ("http", "grpc", "metrics"):
        yield f"--{service}-address={bind_address(service, config.host)}"
        yield f"--{service}-port={config.ports[f'{service}_port']}"
    yield f"--exit-timeout-secs={config.exit_timeout_s}"
    yield f"--exit-on-error={str(config.exit_on_error).lower()}"
    yield f"--log-verbose={config.log_verbose}"
    # The supervisor needs explicit control even if clients may not load or unload models.
    yield "--model-control-mode=explicit"
    yield "--load-model=*"
    if config.response_cache_bytes and use_response_cache:
        yield from response_cache_arguments(install.caches, config.response_cache_bytes)
    if config.trace_otlp is not None:
        yield from tracing_arguments(config.trace_otlp, config.trace_every)
    yield from versioned_arguments(install.release)
    yield from forwarded_arguments(config.arguments)
