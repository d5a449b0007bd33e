"""Transports for Triton's HTTP protocol, blocking and asyncio: JSON over server-sent events for generations.

A generation is one POST to ``/v2/models/<model>/generate_stream`` with the request's fields as a JSON object;
each response is one event. A call that the caller abandons, or whose time is over, is ended by a message over
another connection (:mod:`slipway_client.cancellation`), which a proxy may route to another replica. If that
does not help, the connection is closed: Triton 2.51 tells the model within some ten milliseconds, without
waiting for its next response. Calls of models with one response go to ``/infer``, with the tensors' bytes
after a JSON header. Every time limit applies to the whole answer, not to one read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from httpx_sse import SSEError, aconnect_sse, connect_sse

from slipway_client.address_errors import error_texts, not_triton_error, timeout_error, unreachable_error
from slipway_client.cancellation import (
    FIND_REQUEST_S,
    async_stream_responses,
    cancel_message,
    new_request_id,
    request_found,
    stream_responses,
)
from slipway_client.connections import AGE_S, Pools
from slipway_client.decoding import ERRORS, decoding
from slipway_client.http import messages
from slipway_client.http.connections import Connection, ConnectionPool
from slipway_client.metadata import ModelMetadata
from slipway_client.retry import UNLIMITED, Deadline
from slipway_client.tensors import Tensors, turn_headers
from slipway_client.tls import load_tls
from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Malformed, NotReady, SlipwayError
from slipway_serving.protocol.proxies import HTTP, HTTPS, Proxy, proxy_of
from slipway_serving.protocol.triton_identity import extensions, is_triton
from slipway_serving.protocol.turns import NO_SESSION, Turn

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
_INDEX = "/v2/repository/index"


class _Server:
    """State and decoding that both transports share.

    Attributes:
        proxy: Proxy from the environment that is used for this server; None for a direct connection.
        has_answered: True once the address has answered HTTP.
    """

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        base = _base(url)
        self.proxy: Proxy | None = proxy_of(
            urlsplit(base).netloc, HTTPS if base.startswith("https") else HTTP
        )
        self.has_answered = self._is_triton = False
        self._options: dict[str, Any] = {
            "base_url": base,
            "limits": _LIMITS,
            "verify": _verification(url, certificates),
            "trust_env": False,  # the proxy is already taken from the environment above
            "proxy": self.proxy.url if self.proxy else None,
        }

    def _timeout(self, limit_s: float | None) -> httpx.Timeout:
        return httpx.Timeout(self._connect_timeout_s, read=limit_s, pool=None)

    def _verify_identity(self, response: httpx.Response) -> None:
        """Check from the server's metadata that it is Triton, and remember it.

        Raises:
            NotReady: The server, or a proxy before it, answers with a server error.
            NotTriton: The server is not Triton.
        """
        self.has_answered = True
        restricted = response.status_code == httpx.codes.FORBIDDEN and b"restricted" in response.content
        if response.is_server_error:
            raise unreachable_error(self._url, "HTTP", f"HTTP status {response.status_code}", self.proxy)
        if not restricted and not (response.is_success and is_triton(extensions(response.content))):
            raise not_triton_error(self._url, "HTTP", self.proxy)
        self._is_triton = True

    def _check_status(self, response: httpx.Response) -> httpx.Response:
        if not response.is_success:
            raise messages.response_error(self._url, response)
        return response

    def _infer_tensors(self, response: httpx.Response, model: str) -> Tensors:
        with decoding(self._url, model):
            return messages.infer_tensors(self._check_status(response))

    def _metadata(self, response: httpx.Response, model: str) -> ModelMetadata:
        with decoding(self._url, model):
            return messages.metadata(self._check_status(response))

    def _parameters(self, response: httpx.Response, model: str) -> dict[str, str]:
        with decoding(self._url, model):
            return messages.parameters(self._check_status(response))

    def _parse_event(self, text: str, model: str) -> Tensors | SlipwayError:
        try:
            with decoding(self._url, model):
                return messages.parse_event(text)
        except Malformed as error:
            return error

    def _error(self, error: Exception) -> SlipwayError:
        """Return the Slipway error for an error of httpx."""
        if isinstance(error, SSEError | httpx.DecodingError | httpx.InvalidURL):
            return Malformed(f"{self._url}: the answer is malformed: {error}; try another url")
        return unreachable_error(self._url, "HTTP", error_texts(error), self.proxy)


class HttpTransport(_Server):
    """Blocking HTTP calls of one server. Thread-safe."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates)
        make = partial(httpx.Client, **self._options)
        with _check_proxy(self.proxy):
            self._pools = Pools(lambda: ConnectionPool(make), AGE_S)
            self._session_pools = Pools(lambda: ConnectionPool(make))  # sessions live in one replica
            if self.proxy is not None:
                make().close()  # raises if httpx does not support the proxy

    def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._session_pools.all()):
            pool.close()

    def check(self, deadline: Deadline = UNLIMITED) -> None:
        """Check that the server is Triton; after the first success this sends nothing.

        Raises:
            NotReady: The server cannot be reached, or it is not Triton.
        """
        if not self._is_triton:
            self._verify_identity(self._get("/v2", deadline))

    def server_live(self) -> bool:
        """Return True if the server reports that it is live."""
        self.check()
        return self._get("/v2/health/live").is_success

    def server_ready(self, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if all of the server's models are ready."""
        self.check(deadline)
        return self._get("/v2/health/ready", deadline).is_success

    def model_ready(self, model: str, deadline: Deadline = UNLIMITED) -> bool:
        """Return True if a model is ready; an unknown model is not."""
        self.check(deadline)
        return self._get(f"{_path(model)}/ready", deadline).is_success

    def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata:
        """Fetch the metadata of a model's tensors."""
        self.check(deadline)
        return self._metadata(self._get(_path(model), deadline), model)

    def parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration."""
        self.check()
        return self._parameters(self._get(f"{_path(model)}/config"), model)

    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors:
        """Call a model that sends one response."""
        content, headers = messages.infer_body(tensors, turn)
        content_arguments = {"content": content, "headers": headers}
        with self._pool(turn) as pool:
            try:
                response = self._send(
                    pool, "POST", f"{_path(model)}/infer", deadline.remaining_s(), **content_arguments
                )
            except TimeoutError:
                raise deadline.exceeded() from None
            return self._infer_tensors(response, model)

    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator ends the server's work."""
        request_id, remaining_s = new_request_id(), deadline.remaining_s()
        request = _generate_request(model, tensors, turn, request_id) | {"timeout": self._timeout(None)}
        with self._pool(turn) as pool, pool.connection() as connection:
            end, events = partial(self._end, pool, request_id), self._events(connection, request, model)
            yield from stream_responses(events, end, connection.cut, deadline, remaining_s)

    def _events(
        self, connection: Connection, request: dict[str, Any], model: str
    ) -> Iterator[Tensors | SlipwayError]:
        """Yield the tensors or the error of each event of a stream."""
        cut = Cancelled(
            f"{self._url}: the client cut the connection before the answer was complete; try again"
        )
        try:
            with connect_sse(connection.http, extensions={"trace": connection.trace}, **request) as source:
                if source.response.is_success:
                    source.response.encoding = "utf-8"
                    yield from (self._parse_event(event.data, model) for event in source.iter_sse())
                else:
                    source.response.read()
                    yield messages.response_error(self._url, source.response)
        except (httpx.HTTPError, SSEError) as error:
            yield cut if connection.was_cut else self._error(error)
        else:
            if connection.was_cut:  # a body without a length ends silently when it is cut
                yield cut

    def _end(self, pool: ConnectionPool, request_id: str) -> bool | None:
        """Ask the server to end a request; return True if it knows it, None if it cannot be asked."""
        path, content, headers = _cancel_request(request_id)
        try:
            response = self._send(pool, "POST", path, FIND_REQUEST_S, content=content, headers=headers)
            return _parse_found(response)
        except (SlipwayError, TimeoutError, RuntimeError):  # RuntimeError means that the client was closed
            return None

    def _get(self, path: str, deadline: Deadline = UNLIMITED) -> httpx.Response:
        limit_s = deadline.within(self._connect_timeout_s)
        with self._pool(NO_SESSION) as pool:
            try:
                return self._send(pool, "GET", path, limit_s)
            except TimeoutError:
                deadline.remaining_s()
                raise timeout_error(self._url, limit_s, self.proxy) from None

    def _send(
        self, pool: ConnectionPool, method: str, path: str, limit_s: float | None, **content_arguments: Any
    ) -> httpx.Response:
        """Send a request and return its whole answer.

        Raises:
            TimeoutError: The whole answer did not arrive within `limit_s` seconds.
            SlipwayError: The server did not answer.
        """
        with pool.connection() as connection, connection.time_limit(limit_s):
            send = partial(connection.http.request, method, path, timeout=self._timeout(limit_s))
            try:
                response = send(extensions={"trace": connection.trace}, **content_arguments)
            except httpx.HTTPError as error:
                if connection.timed_out or isinstance(error, httpx.ReadTimeout):
                    raise TimeoutError from None
                raise self._error(error) from None
            if connection.timed_out:  # a body without a length ends silently when it is cut
                raise TimeoutError
        return response

    @contextlib.contextmanager
    def _pool(self, turn: Turn) -> Iterator[ConnectionPool]:
        """Provide the connection pool for one request."""
        pools = self._session_pools if turn.id else self._pools
        pool, refused = pools.acquire(), False
        try:
            yield pool
        except NotReady:
            refused = True
            raise
        finally:
            for retired in pools.release(pool, refused=refused):
                retired.close()


class AsyncHttpTransport(_Server):
    """Asyncio HTTP calls of one server."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates)
        make = partial(httpx.AsyncClient, **self._options)
        with _check_proxy(self.proxy):
            self._pools = Pools(make, AGE_S)
            self._session_pools = Pools(make)  # sessions live in one replica

    async def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._session_pools.all()):
            await pool.aclose()

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
        return (await self._get(f"{_path(model)}/ready", deadline)).is_success

    async def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata:
        """Fetch the metadata of a model's tensors."""
        await self.check(deadline)
        return self._metadata(await self._get(_path(model), deadline), model)

    async def parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration."""
        await self.check()
        return self._parameters(await self._get(f"{_path(model)}/config"), model)

    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors:
        """Call a model that sends one response."""
        content, headers = messages.infer_body(tensors, turn)
        content_arguments = {"content": content, "headers": headers}
        async with self._pool(turn) as http:
            try:
                response = await self._send(
                    http, "POST", f"{_path(model)}/infer", deadline.remaining_s(), **content_arguments
                )
            except TimeoutError:
                raise deadline.exceeded() from None
            return self._infer_tensors(response, model)

    async def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> AsyncGenerator[Tensors, None]:
        """Call a decoupled model; closing the generator or cancelling its task ends the server's work."""
        request_id, remaining_s = new_request_id(), deadline.remaining_s()
        request = _generate_request(model, tensors, turn, request_id) | {"timeout": self._timeout(None)}
        async with self._pool(turn) as http:
            end, events = partial(self._end, http, request_id), self._events(http, request, model)
            async with contextlib.aclosing(
                async_stream_responses(events, end, deadline, remaining_s)
            ) as responses:
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

    async def _end(self, http: httpx.AsyncClient, request_id: str) -> bool | None:
        """Ask the server to end a request; see :meth:`HttpTransport._end`."""
        path, content, headers = _cancel_request(request_id)
        try:
            response = await self._send(http, "POST", path, FIND_REQUEST_S, content=content, headers=headers)
            return _parse_found(response)
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


@contextlib.contextmanager
def _check_proxy(proxy: Proxy | None) -> Iterator[None]:
    """Raise a clear error if httpx does not support the proxy.

    Raises:
        InvalidRequest: The variable is not the URL of a proxy, or the library for SOCKS proxies is missing.
    """
    try:
        yield
    except ImportError:
        raise InvalidRequest(
            f"client: {proxy.variable if proxy else ''} names a SOCKS proxy, which needs another package; try"
            f" `pip install httpx[socks]`, or no_proxy={proxy.host if proxy else ''} for a direct connection"
        ) from None
    except (ValueError, httpx.InvalidURL):
        if proxy is None:
            raise
        raise InvalidRequest(
            f"client: {proxy.variable} must be the URL of an http, https or socks5 proxy, got another value;"
            f" try correcting it, or no_proxy={proxy.host} for a direct connection"
        ) from None


def _verification(url: str, certificates: Path | None) -> ssl.SSLContext:
    """Return the TLS context of connections; by default it trusts the usual authorities."""
    tls = load_tls(certificates, secured=url.startswith("https://"))
    return httpx.create_ssl_context() if tls is None else tls.context()


def _base(url: str) -> str:
    return url if url.startswith(("http://", "https://")) else f"http://{url}"


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


def _generate_request(model: str, tensors: Tensors, turn: Turn, request_id: str) -> dict[str, Any]:
    """Return the arguments of httpx for a generation; the reader enforces the time limit."""
    return {
        "method": "POST",
        "url": f"{_path(model)}/generate_stream",
        "json": {"id": request_id, **messages.generate_body(tensors, turn)},
        "headers": turn_headers(turn),
    }


def _cancel_request(request_id: str) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of the request that ends another request."""
    model, tensors = cancel_message(request_id)
    return f"{_path(model)}/infer", *messages.infer_body(tensors, NO_SESSION)


def _parse_found(response: httpx.Response) -> bool | None:
    """Return True if the server found the request to end, or None if its answer cannot be decoded."""
    try:
        return request_found(messages.infer_tensors(response)) if response.is_success else None
    except (Malformed, *ERRORS):
        return None
