"""Asyncio transport for Triton's HTTP protocol, with the protocol of :mod:`slipway_client.http.transport`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import SSEError, aconnect_sse

from slipway_client.address_errors import timeout_error
from slipway_client.cancellation import (
    FIND_REQUEST_S,
    async_stream_responses,
    new_request_id,
)
from slipway_client.connections import AGE_S, Pools
from slipway_client.http import messages
from slipway_client.http.endpoint import (
    STATISTICS,
    HttpEndpoint,
    cancel_request,
    check_proxy,
    generate_request,
    model_path,
    parse_found,
)
from slipway_client.metadata import ModelMetadata
from slipway_client.retry import UNLIMITED, Deadline
from slipway_client.stop_requests import async_stop_when_set
from slipway_client.tensors import Tensors
from slipway_serving.protocol.errors import NotReady, SlipwayError
from slipway_serving.protocol.turns import NO_SESSION, Turn


class AsyncHttpTransport(HttpEndpoint):
    """Asyncio HTTP calls of one server."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates)
        make = partial(httpx.AsyncClient, **self._options)
        with check_proxy(self.proxy):
            self._pools = Pools(make, AGE_S)
            self._session_pools = Pools(make)  # sessions live in one replica

    async def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._session_pools.all()):
            await pool.aclose()

    def retire(self) -> None:
        """Let later requests take a new connection; requests in progress and sessions keep theirs."""
        self._pools.retire()

    async def check(self, deadline: Deadline = UNLIMITED) -> None:
        """Check that the server is Triton; see :meth:`HttpTransport.check`."""
        if not self._is_triton:
            self._verify_identity(await self._get("/v2", deadline))

    async def server_live(self) -> bool:
        """Return True if the server reports that it is live."""
        await self.check()
        return (await self._get("/v2/health/live")).is_success

    async def server_ready(self, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if all of the server's models are ready."""
        await self.check(deadline)
        return (await self._get("/v2/health/ready", deadline)).is_success

    async def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if a model is ready; an unknown model is not."""
        await self.check(deadline)
        return (await self._get(f"{model_path(model)}/ready", deadline)).is_success

    async def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata:
        """Fetch the metadata of a model's tensors."""
        await self.check(deadline)
        return self._metadata(await self._get(model_path(model), deadline), model)

    async def parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration."""
        await self.check()
        return self._parameters(await self._get(f"{model_path(model)}/config"), model)

    async def models(self) -> tuple[str, ...]:
        """Fetch the names of the models that are ready."""
        await self.check()
        return self._models(await self._get(STATISTICS))

    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors:
        """Call a model that sends one response."""
        content, headers = messages.infer_body(tensors, turn)
        content_arguments = {"content": content, "headers": headers}
        async with self._pool(turn) as http:
            try:
                response = await self._send(
                    http, "POST", f"{model_path(model)}/infer", deadline.remaining_s(), **content_arguments
                )
            except TimeoutError:
                raise deadline.exceeded() from None
            return self._infer_tensors(response, model)

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
        request = generate_request(model, tensors, turn, request_id) | {"timeout": self._timeout(None)}
        async with self._pool(turn) as http:
            end, events = partial(self._end, http, request_id), self._events(http, request, model)
            responses = async_stream_responses(events, end, deadline, remaining_s)
            with async_stop_when_set(stop, partial(end, stop=True)):
                async with contextlib.aclosing(responses):
                    async for response in responses:
                        yield response

    async def _events(
        self, http: httpx.AsyncClient, request: dict[str, Any], model: str
    ) -> AsyncGenerator[Tensors | SlipwayError, None]:
        """Yield the tensors or the error of each event of a stream."""
        try:
            async with aconnect_sse(http, **request) as source:
                if source.response.is_success:
                    source.response.encoding = "utf-8"
                    async for event in source.aiter_sse():
                        yield self._parse_event(event.data, model)
                else:
                    await source.response.aread()
                    yield messages.response_error(self._url, source.response)
        except (httpx.HTTPError, SSEError) as error:
            yield self._error(error)

    async def _end(self, http: httpx.AsyncClient, request_id: str, *, stop: bool = False) -> bool | None:
        """Ask the server to end a request; see :meth:`HttpTransport._end`."""
        path, content, headers = cancel_request(request_id, stop=stop)
        try:
            response = await self._send(http, "POST", path, FIND_REQUEST_S, content=content, headers=headers)
            return parse_found(response)
        except (SlipwayError, TimeoutError, RuntimeError):
            return None

    async def _get(self, path: str, deadline: Deadline = UNLIMITED) -> httpx.Response:
        limit_s = deadline.within(self._connect_timeout_s)
        async with self._pool(NO_SESSION) as http:
            try:
                return await self._send(http, "GET", path, limit_s)
            except TimeoutError:
                deadline.remaining_s()
                raise timeout_error(self._url, limit_s, self.proxy) from None

    async def _send(
        self, http: httpx.AsyncClient, method: str, path: str, limit_s: float | None, **content_arguments: Any
    ) -> httpx.Response:
        """Send a request and return its whole answer; see :meth:`HttpTransport._send`."""
        try:
            async with asyncio.timeout(limit_s):
                return await http.request(method, path, timeout=self._timeout(limit_s), **content_arguments)
        except httpx.ReadTimeout:
            raise TimeoutError from None
        except httpx.HTTPError as error:
            raise self._error(error) from None

    @contextlib.asynccontextmanager
    async def _pool(self, turn: Turn) -> AsyncIterator[httpx.AsyncClient]:
        """Provide the connection pool for one request."""
        pools = self._session_pools if turn.id else self._pools
        http, refused = pools.acquire(), False
        try:
            yield http
        except NotReady:
            refused = True
            raise
        finally:
            for retired in pools.release(http, refused=refused):
                await retired.aclose()
