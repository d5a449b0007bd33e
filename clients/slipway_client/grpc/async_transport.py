"""Asyncio transport for Triton's gRPC protocol, with the protocol of :mod:`slipway_client.grpc.transport`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2

from slipway_client.cancellation import (
    CANCEL_GRACE_S,
    DEADLINE_GRACE_S,
    FIND_REQUEST_S,
    async_stream_responses,
    cancel_message,
    new_request_id,
)
from slipway_client.grpc import messages
from slipway_client.grpc.endpoint import GrpcEndpoint, parse_found
from slipway_client.metadata import ModelMetadata
from slipway_client.retry import UNLIMITED, Deadline
from slipway_client.stop_requests import async_stop_when_set
from slipway_client.tensors import Tensors, turn_headers
from slipway_serving.protocol.errors import NotReady, SlipwayError
from slipway_serving.protocol.turns import NO_SESSION, Turn


class AsyncGrpcTransport(GrpcEndpoint):
    """Asyncio gRPC calls of one server, for the event loop in which the object was created."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates, grpc.aio)
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close the connection; open streams end as cancelled."""
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=DEADLINE_GRACE_S)
        for connection in self._pools.all():
            await connection.channel.close()

    async def check(self, deadline: Deadline = UNLIMITED) -> None:
        """Check that the server is Triton; see :meth:`~slipway_client.grpc.transport.GrpcTransport.check`."""
        if not self._is_triton:
            message = service_pb2.ServerMetadataRequest()
            self._verify_identity(await self._probe("ServerMetadata", message, deadline))

    async def server_live(self) -> bool:
        """Return True if the server reports that it is live."""
        await self.check()
        return bool((await self._probe("ServerLive", service_pb2.ServerLiveRequest())).live)

    async def server_ready(self, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if all of the server's models are ready."""
        await self.check(deadline)
        return bool((await self._probe("ServerReady", service_pb2.ServerReadyRequest(), deadline)).ready)

    async def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if a model is ready; an unknown model is not."""
        await self.check(deadline)
        message = service_pb2.ModelReadyRequest(name=model)
        return bool((await self._probe("ModelReady", message, deadline)).ready)

    async def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata:
        """Fetch the metadata of a model's tensors."""
        await self.check(deadline)
        message = service_pb2.ModelMetadataRequest(name=model)
        return messages.metadata(await self._probe("ModelMetadata", message, deadline))

    async def parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration."""
        await self.check()
        answer = await self._probe("ModelConfig", service_pb2.ModelConfigRequest(name=model))
        return messages.parameters(answer)

    async def models(self) -> tuple[str, ...]:
        """Fetch the names of the models that are ready."""
        await self.check()
        answer = await self._probe("ModelStatistics", service_pb2.ModelStatisticsRequest())
        return messages.ready_models(answer)

    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors:
        """Call a model that sends one response."""
        request, remaining_s = messages.request(model, tensors, turn), deadline.remaining_s()
        async with self._stub() as stub:
            call = stub.ModelInfer(
                request,
                timeout=None if remaining_s is None else remaining_s + DEADLINE_GRACE_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            try:
                # asyncio.wait_for of Python 3.11 loses a cancellation that comes with the answer.
                async with asyncio.timeout(remaining_s):
                    answer = await self._shield(call)
                return self._tensors(answer, model)
            except TimeoutError:
                raise deadline.exceeded() from None
            except grpc.RpcError as error:
                raise self._inference_error(error, deadline) from None

    async def stream(
        self,
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn = NO_SESSION,
        *,
        priority: int | None = None,
        stop: asyncio.Event | None = None,
    ) -> AsyncGenerator[Tensors, None]:
        """Call a decoupled model; closing the generator or cancelling its task ends the server's work."""
        request_id, remaining_s = new_request_id(), deadline.remaining_s()
        async with self._stub() as stub:
            call = stub.ModelStreamInfer(
                [messages.request(model, tensors, turn, request_id, priority)],
                timeout=None if remaining_s is None else remaining_s + CANCEL_GRACE_S,
                metadata=tuple(turn_headers(turn).items()),
            )
            end, messages_read = partial(self._end, stub, request_id), self._messages(call, deadline, model)
            responses = async_stream_responses(messages_read, end, deadline, remaining_s)
            with async_stop_when_set(stop, partial(end, stop=True)):
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        yield response

    async def _messages(
        self, call: Any, deadline: Deadline, model: str
    ) -> AsyncGenerator[Tensors | SlipwayError, None]:
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                yield self._parse_message(message, model)
        except grpc.RpcError as error:
            yield self._inference_error(error, deadline)
        finally:
            call.cancel()

    async def _end(self, stub: Any, request_id: str, *, stop: bool = False) -> bool | None:
        """Ask the server to end a request; see :meth:`~slipway_client.grpc.transport.GrpcTransport._end`."""
        model, tensors = cancel_message(request_id, stop=stop)
        try:
            answer = await self._shield(
                stub.ModelInfer(messages.request(model, tensors), timeout=FIND_REQUEST_S)
            )
        except (grpc.RpcError, grpc.aio.UsageError):
            return None
        return parse_found(answer)

    def _shield(self, call: Any) -> asyncio.Future[Any]:
        """Return a future for a call that runs to its own end even if the waiting task is cancelled."""

        async def answer() -> Any:
            return await call

        def on_done(task: asyncio.Task[Any]) -> None:
            self._abandoned.discard(task)
            if not task.cancelled():
                task.exception()  # otherwise asyncio logs the exception as never retrieved

        task = asyncio.create_task(answer())
        self._abandoned.add(task)
        task.add_done_callback(on_done)
        return asyncio.shield(task)

    async def _probe(self, method: str, message: Any, deadline: Deadline = UNLIMITED) -> Any:
        limit_s = deadline.within(self._connect_timeout_s)
        async with self._stub() as stub:
            try:
                return await getattr(stub, method)(message, timeout=limit_s)
            except grpc.RpcError as error:
                deadline.remaining_s()
                raise self._probe_error(error, limit_s) from None

    @contextlib.asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        """Provide the stub of a connection for one request."""
        connection, refused = self._pools.acquire(), False
        try:
            yield connection.stub
        except NotReady:
            refused = True
            raise
        finally:
            for retired in self._pools.release(connection, refused=refused):
                await retired.channel.close()
