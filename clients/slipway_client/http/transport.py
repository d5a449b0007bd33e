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

from slipway_client.cancellation import KNOWN_S, answers, async_answers, ending, made_id, was_found
from slipway_client.connections import AGE_S, Pools
from slipway_client.decoding import ERRORS, decoding
from slipway_client.http import messages
from slipway_client.http.connections import Connections, Line
from slipway_client.metadata import ModelMetadata
from slipway_client.retry import UNLIMITED, Deadline
from slipway_client.tensors import Tensors, turn_headers
from slipway_client.tls import checked
from slipway_client.unreachable import not_triton, silent, texts_of, unreachable
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

    def _take_identity(self, response: httpx.Response) -> None:
        """Check from the server's metadata that it is Triton, and remember it.

        Raises:
            NotReady: The server, or a proxy before it, answers with a server error.
            NotTriton: The server is not Triton.
        """
        self.has_answered = True
        restricted = response.status_code == httpx.codes.FORBIDDEN and b"restricted" in response.content
        if response.is_server_error:
            raise unreachable(self._url, "HTTP", f"HTTP status {response.status_code}", self.proxy)
        if not restricted and not (response.is_success and is_triton(extensions(response.content))):
            raise not_triton(self._url, "HTTP", self.proxy)
        self._is_triton = True

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if not response.is_success:
            raise messages.answer_error(self._url, response)
        return response

    def _infer_tensors(self, response: httpx.Response, model: str) -> Tensors:
        with decoding(self._url, model):
            return messages.infer_tensors(self._checked(response))

    def _metadata(self, response: httpx.Response, model: str) -> ModelMetadata:
        with decoding(self._url, model):
            return messages.metadata(self._checked(response))

    def _parameters(self, response: httpx.Response, model: str) -> dict[str, str]:
        with decoding(self._url, model):
            return messages.parameters(self._checked(response))

    def _streamed(self, text: str, model: str) -> Tensors | SlipwayError:
        try:
            with decoding(self._url, model):
                return messages.streamed(text)
        except Malformed as error:
            return error

    def _error(self, error: Exception) -> SlipwayError:
        """Return the Slipway error for an error of httpx."""
        if isinstance(error, SSEError | httpx.DecodingError | httpx.InvalidURL):
            return Malformed(f"{self._url}: the answer is malformed: {error}; try another url")
        return unreachable(self._url, "HTTP", texts_of(error), self.proxy)


class HttpTransport(_Server):
    """Blocking HTTP calls of one server. Thread-safe."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates)
        make = partial(httpx.Client, **self._options)
        with _proxy_checked(self.proxy):
            self._pools = Pools(lambda: Connections(make), AGE_S)
            self._staying = Pools(lambda: Connections(make))  # sessions live in one replica
            if self.proxy is not None:
                make().close()  # raises if httpx does not support the proxy

    def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._staying.all()):
            pool.close()

    def check(self, deadline: Deadline = UNLIMITED) -> None:
        """Check that the server is Triton; after the first success this sends nothing.

        Raises:
            NotReady: The server cannot be reached, or it is not Triton.
        """
        if not self._is_triton:
            self._take_identity(self._get("/v2", deadline))

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
        sent = {"content": content, "headers": headers}
        with self._pool(turn) as pool:
            try:
                response = self._asked(pool, "POST", f"{_path(model)}/infer", deadline.remaining_s(), **sent)
            except TimeoutError:
                raise deadline.exceeded() from None
            return self._infer_tensors(response, model)

    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator ends the server's work."""
        request_id, left_s = made_id(), deadline.remaining_s()
        request = _generate_request(model, tensors, turn, request_id) | {"timeout": self._timeout(None)}
        with self._pool(turn) as pool, pool.line() as line:
            end, events = partial(self._end, pool, request_id), self._events(line, request, model)
            yield from answers(events, end, line.cut, deadline, left_s)

    def _events(self, line: Line, request: dict[str, Any], model: str) -> Iterator[Tensors | SlipwayError]:
        cut = Cancelled(f"{self._url}: the connection was cut before the answer's end; try again")
        try:
            with connect_sse(line.http, extensions={"trace": line.traced}, **request) as source:
                if source.response.is_success:
                    source.response.encoding = "utf-8"
                    yield from (self._streamed(event.data, model) for event in source.iter_sse())
                else:
                    source.response.read()
                    yield messages.answer_error(self._url, source.response)
        except (httpx.HTTPError, SSEError) as error:
            yield cut if line.was_cut else self._error(error)
        else:
            if line.was_cut:  # a body without a length ends silently when it is cut
                yield cut

    def _end(self, pool: Connections, request_id: str) -> bool | None:
        """Ask the server to end a request; return True if it knows it, None if it cannot be asked."""
        path, content, headers = _ending(request_id)
        try:
            response = self._asked(pool, "POST", path, KNOWN_S, content=content, headers=headers)
            return _was_found(response)
        except (SlipwayError, TimeoutError, RuntimeError):  # RuntimeError means that the client was closed
            return None

    def _get(self, path: str, deadline: Deadline = UNLIMITED) -> httpx.Response:
        limit_s = deadline.within(self._connect_timeout_s)
        with self._pool(NO_SESSION) as pool:
            try:
                return self._asked(pool, "GET", path, limit_s)
            except TimeoutError:
                deadline.remaining_s()
                raise silent(self._url, limit_s, self.proxy) from None

    def _asked(
        self, pool: Connections, method: str, path: str, limit_s: float | None, **sent: Any
    ) -> httpx.Response:
        """Send a request and return its whole answer.

        Raises:
            TimeoutError: The whole answer did not arrive within `limit_s` seconds.
            SlipwayError: The server did not answer.
        """
        with pool.line() as line, line.limited(limit_s):
            asked = partial(line.http.request, method, path, timeout=self._timeout(limit_s))
            try:
                response = asked(extensions={"trace": line.traced}, **sent)
            except httpx.HTTPError as error:
                if line.is_late or isinstance(error, httpx.ReadTimeout):
                    raise TimeoutError from None
                raise self._error(error) from None
            if line.is_late:  # a body without a length ends silently when it is cut
                raise TimeoutError
        return response

    @contextlib.contextmanager
    def _pool(self, turn: Turn) -> Iterator[Connections]:
        """Provide the connection pool for one request."""
        pools = self._staying if turn.id else self._pools
        pool, refused = pools.take(), False
        try:
            yield pool
        except NotReady:
            refused = True
            raise
        finally:
            for over in pools.give_back(pool, refused=refused):
                over.close()


class AsyncHttpTransport(_Server):
    """Asyncio HTTP calls of one server."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates)
        make = partial(httpx.AsyncClient, **self._options)
        with _proxy_checked(self.proxy):
            self._pools = Pools(make, AGE_S)
            self._staying = Pools(make)  # sessions live in one replica

    async def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._staying.all()):
            await pool.aclose()

    async def check(self, deadline: Deadline = UNLIMITED) -> None:
        """Check that the server is Triton; see :meth:`HttpTransport.check`."""
        if not self._is_triton:
            self._take_identity(await self._get("/v2", deadline))

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
        sent = {"content": content, "headers": headers}
        async with self._pool(turn) as http:
            try:
                response = await self._asked(
                    http, "POST", f"{_path(model)}/infer", deadline.remaining_s(), **sent
                )
            except TimeoutError:
                raise deadline.exceeded() from None
            return self._infer_tensors(response, model)

    async def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> AsyncGenerator[Tensors, None]:
        """Call a decoupled model; closing the generator or cancelling its task ends the server's work."""
        request_id, left_s = made_id(), deadline.remaining_s()
        request = _generate_request(model, tensors, turn, request_id) | {"timeout": self._timeout(None)}
        async with self._pool(turn) as http:
            end, events = partial(self._end, http, request_id), self._events(http, request, model)
            async with contextlib.aclosing(async_answers(events, end, deadline, left_s)) as answered:
                async for found in answered:
                    yield found

    async def _events(
        self, http: httpx.AsyncClient, request: dict[str, Any], model: str
    ) -> AsyncGenerator[Tensors | SlipwayError, None]:
        try:
            async with aconnect_sse(http, **request) as source:
                if source.response.is_success:
                    source.response.encoding = "utf-8"
                    async for event in source.aiter_sse():
                        yield self._streamed(event.data, model)
                else:
                    await source.response.aread()
                    yield messages.answer_error(self._url, source.response)
        except (httpx.HTTPError, SSEError) as error:
            yield self._error(error)

    async def _end(self, http: httpx.AsyncClient, request_id: str) -> bool | None:
        """Ask the server to end a request; see :meth:`HttpTransport._end`."""
        path, content, headers = _ending(request_id)
        try:
            response = await self._asked(http, "POST", path, KNOWN_S, content=content, headers=headers)
            return _was_found(response)
        except (SlipwayError, TimeoutError, RuntimeError):
            return None

    async def _get(self, path: str, deadline: Deadline = UNLIMITED) -> httpx.Response:
        limit_s = deadline.within(self._connect_timeout_s)
        async with self._pool(NO_SESSION) as http:
            try:
                return await self._asked(http, "GET", path, limit_s)
            except TimeoutError:
                deadline.remaining_s()
                raise silent(self._url, limit_s, self.proxy) from None

    async def _asked(
        self, http: httpx.AsyncClient, method: str, path: str, limit_s: float | None, **sent: Any
    ) -> httpx.Response:
        """Send a request and return its whole answer; see :meth:`HttpTransport._asked`."""
        try:
            async with asyncio.timeout(limit_s):
                return await http.request(method, path, timeout=self._timeout(limit_s), **sent)
        except httpx.ReadTimeout:
            raise TimeoutError from None
        except httpx.HTTPError as error:
            raise self._error(error) from None

    @contextlib.asynccontextmanager
    async def _pool(self, turn: Turn) -> AsyncIterator[httpx.AsyncClient]:
        """Provide the connection pool for one request."""
        pools = self._staying if turn.id else self._pools
        http, refused = pools.take(), False
        try:
            yield http
        except NotReady:
            refused = True
            raise
        finally:
            for over in pools.give_back(http, refused=refused):
                await over.aclose()


@contextlib.contextmanager
def _proxy_checked(proxy: Proxy | None) -> Iterator[None]:
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
            f"client: {proxy.variable} must be the URL of an http, https or socks5 proxy, got something else;"
            f" try no_proxy={proxy.host} for a direct connection"
        ) from None


def _verification(url: str, certificates: Path | None) -> ssl.SSLContext:
    """Return the TLS context of connections; by default it trusts the usual authorities."""
    tls = checked(certificates, secured=url.startswith("https://"))
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


def _ending(request_id: str) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of the request that ends another request."""
    model, tensors = ending(request_id)
    return f"{_path(model)}/infer", *messages.infer_body(tensors, NO_SESSION)


def _was_found(response: httpx.Response) -> bool | None:
    """Return True if the server found the request to end, or None if its answer cannot be decoded."""
    try:
        return was_found(messages.infer_tensors(response)) if response.is_success else None
    except (Malformed, *ERRORS):
        return None
