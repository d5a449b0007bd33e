"""Blocking transport for Triton's HTTP protocol: JSON over server-sent events for generations.

A generation is one POST to ``/v2/models/<model>/generate_stream`` with the request's fields as a JSON object;
each response is one event. A call that the caller abandons, or whose time is over, is ended by a message over
another connection (:mod:`slipway_client.cancellation`), which a proxy may route to another replica. If that
does not help, the connection is closed: Triton 2.51 tells the model within some ten milliseconds, without
waiting for its next response. Calls of models with one response go to ``/infer``, with the tensors' bytes
after a JSON header. Every time limit applies to the whole answer, not to one read.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import SSEError, connect_sse

from slipway_client.address_errors import timeout_error
from slipway_client.cancellation import (
    FIND_REQUEST_S,
    new_request_id,
    stream_responses,
)
from slipway_client.connections import AGE_S, Pools
from slipway_client.http import messages
from slipway_client.http.connections import Connection, ConnectionPool
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
from slipway_client.stop_requests import stop_when_set
from slipway_client.tensors import Tensors
from slipway_serving.protocol.errors import Cancelled, NotReady, SlipwayError
from slipway_serving.protocol.turns import NO_SESSION, Turn


class HttpTransport(HttpEndpoint):
    """Blocking HTTP calls of one server. Thread-safe."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        super().__init__(url, connect_timeout_s, certificates)
        make = partial(httpx.Client, **self._options)
        with check_proxy(self.proxy):
            self._pools = Pools(lambda: ConnectionPool(make), AGE_S)
            self._session_pools = Pools(lambda: ConnectionPool(make))  # sessions live in one replica
            if self.proxy is not None:
                make().close()  # raises if httpx does not support the proxy

    def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._session_pools.all()):
            pool.close()

    def retire(self) -> None:
        """Let later requests take a new connection; requests in progress and sessions keep theirs."""
        self._pools.retire()

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
        return self._get(f"{model_path(model)}/ready", deadline).is_success

    def metadata(self, model: str, deadline: Deadline = UNLIMITED) -> ModelMetadata:
        """Fetch the metadata of a model's tensors."""
        self.check(deadline)
        return self._metadata(self._get(model_path(model), deadline), model)

    def parameters(self, model: str) -> dict[str, str]:
        """Fetch the parameters of a model's configuration."""
        self.check()
        return self._parameters(self._get(f"{model_path(model)}/config"), model)

    def models(self) -> tuple[str, ...]:
        """Fetch the names of the models that are ready."""
        self.check()
        return self._models(self._get(STATISTICS))

    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors:
        """Call a model that sends one response."""
        content, headers = messages.infer_body(tensors, turn)
        content_arguments = {"content": content, "headers": headers}
        with self._pool(turn) as pool:
            try:
                response = self._send(
                    pool, "POST", f"{model_path(model)}/infer", deadline.remaining_s(), **content_arguments
                )
            except TimeoutError:
                raise deadline.exceeded() from None
            return self._infer_tensors(response, model)

    def stream(
        self,
        model: str,
        tensors: Tensors,
        deadline: Deadline,
        turn: Turn = NO_SESSION,
        *,
        priority: int | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator ends the server's work."""
        request_id, remaining_s = new_request_id(), deadline.remaining_s()
        request = generate_request(model, tensors, turn, request_id) | {"timeout": self._timeout(None)}
        with self._pool(turn) as pool, pool.connection() as connection:
            end, events = partial(self._end, pool, request_id), self._events(connection, request, model)
            with stop_when_set(stop, partial(end, stop=True)):
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

    def _end(self, pool: ConnectionPool, request_id: str, *, stop: bool = False) -> bool | None:
        """Ask the server to end a request; return True if it knows it, None if it cannot be asked."""
        path, content, headers = cancel_request(request_id, stop=stop)
        try:
            response = self._send(pool, "POST", path, FIND_REQUEST_S, content=content, headers=headers)
            return parse_found(response)
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
