"""Transports as the clients see them: the same calls over gRPC and HTTP, blocking and for asyncio.

:func:`make_transport` and :func:`make_async_transport` return the transport of a protocol to one address.
HTTP carries no priority of Triton's own, so its transports ignore `priority`.
"""

# ruff: noqa: D102 - slipway_client.grpc.transport.GrpcTransport describes each call.

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Protocol

from slipway_client import generation
from slipway_client.metadata import ModelMetadata
from slipway_client.retry import UNLIMITED, Deadline
from slipway_client.tensors import Tensors
from slipway_serving.protocol.turns import NO_SESSION, Turn


class Transport(Protocol):
    """Calls that both the gRPC and the HTTP transport offer."""

    def close(self) -> None: ...
    def retire(self) -> None: ...
    def server_live(self) -> bool: ...
    def server_ready(self, deadline: Deadline = UNLIMITED) -> bool: ...
    def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool: ...
    def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata: ...
    def parameters(self, model: str) -> dict[str, str]: ...
    def models(self) -> tuple[str, ...]: ...
    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors: ...
    def stream(
        self,
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn = NO_SESSION,
        *,
        priority: int | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Tensors, None, None]: ...


def make_transport(
    url: str, protocol: generation.Protocol, connect_timeout_s: float, tls: Path | None
) -> Transport:
    """Create the blocking transport of a protocol; nothing is sent yet."""
    # Imported here so that a command loads only the protocol that it uses, or none.
    if protocol == "grpc":
        from slipway_client.grpc.transport import GrpcTransport

        return GrpcTransport(url, connect_timeout_s, tls)
    from slipway_client.http.transport import HttpTransport

    return HttpTransport(url, connect_timeout_s, tls)


class AsyncTransport(Protocol):
    """Calls that both the gRPC and the HTTP transport offer."""

    async def close(self) -> None: ...
    def retire(self) -> None: ...
    async def server_live(self) -> bool: ...
    async def server_ready(self, deadline: Deadline = UNLIMITED) -> bool: ...
    async def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool: ...
    async def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata: ...
    async def parameters(self, model: str) -> dict[str, str]: ...
    async def models(self) -> tuple[str, ...]: ...
    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors: ...
    def stream(
        self,
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn = NO_SESSION,
        *,
        priority: int | None = None,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[Tensors, None]: ...


def make_async_transport(
    url: str, protocol: generation.Protocol, connect_timeout_s: float, tls: Path | None
) -> AsyncTransport:
    """Create the asyncio transport of a protocol, for the event loop that runs."""
    # Imported here so that a program loads only the protocol that it uses.
    if protocol == "grpc":
        from slipway_client.grpc.async_transport import AsyncGrpcTransport

        return AsyncGrpcTransport(url, connect_timeout_s, tls)
    from slipway_client.http.async_transport import AsyncHttpTransport

    return AsyncHttpTransport(url, connect_timeout_s, tls)
