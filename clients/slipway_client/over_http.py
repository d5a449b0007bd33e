"""Triton's HTTP protocol: JSON over server-sent events for generations, a sync and an asyncio transport.

A generation is one POST to ``/v2/models/<model>/generate_stream``: the request's fields as a JSON object,
one event per response. One that is left, or whose time is over, is ended by a message over another connection
(:mod:`slipway_client.leaving`), which a proxy may lead to another replica. Where that does not help, the
connection is closed: Triton 2.51 tells the model within some ten milliseconds, without waiting for its next
response. One answer for one request goes to ``/infer`` with the tensors' bytes behind a JSON header.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from httpx_sse import SSEError, aconnect_sse, connect_sse

from slipway_client.connections import AGE_S, Pools
from slipway_client.leaving import KNOWN_S, answers, async_answers, ending, made_id, was_found
from slipway_client.metadata import ModelMetadata, TensorMetadata
from slipway_client.retry import Deadline, UnknownModel
from slipway_client.tensors import (
    Tensors,
    datatype_of,
    from_bytes,
    to_bytes,
    turn_headers,
    turn_parameters,
)
from slipway_client.tls import checked
from slipway_serving.errors import Cancelled, NotReady, SlipwayError, Unrecoverable, from_wire
from slipway_serving.requests import SHAPE_PARAMETER
from slipway_serving.turns import NO_SESSION, Turn

_HEADER_LENGTH = "Inference-Header-Content-Length"
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)


class HttpTransport:
    """Blocking calls of one server; may be used from several threads."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        self._url = url
        make = partial(
            httpx.Client,
            base_url=_base(url),
            timeout=connect_timeout_s,
            limits=_LIMITS,
            verify=_verification(url, certificates),
        )
        self._pools = Pools(lambda: _Connections(make), AGE_S)
        self._staying = Pools(lambda: _Connections(make))  # a session is in the memory of one replica
        self._connect_timeout_s = connect_timeout_s

    def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._staying.all()):
            pool.close()

    def server_live(self) -> bool:
        """Ask whether the server answers at all."""
        return self._get("/v2/health/live").is_success

    def server_ready(self) -> bool:
        """Ask whether all of the server's models are ready."""
        return self._get("/v2/health/ready").is_success

    def model_ready(self, model: str) -> bool:
        """Ask whether a model is ready; an unknown one is not."""
        return self._get(f"{_path(model)}/ready").is_success

    def metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors."""
        return _metadata(_checked(self._url, self._get(_path(model))))

    def infer(self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION) -> Tensors:
        """Call a model that answers once."""
        content, headers = infer_body(tensors, turn)
        timeout = _timeout(self._connect_timeout_s, deadline)
        with self._pool(turn) as pool:
            try:
                response = pool.http.post(
                    f"{_path(model)}/infer", content=content, headers=headers, timeout=timeout
                )
            except httpx.TransportError as error:
                raise _call_error(self._url, error, deadline) from None
            return _infer_tensors(_checked(self._url, response))

    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator ends the work."""
        request_id, left_s = made_id(), deadline.remaining_s()
        request = _generate_request(model, tensors, turn, request_id, self._connect_timeout_s)
        with self._pool(turn) as pool, pool.line() as line:
            end, events = partial(self._end, pool.http, request_id), self._events(line, request, deadline)
            yield from answers(events, end, line.cut, deadline, left_s)

    def _events(
        self, line: _Line, request: dict[str, Any], deadline: Deadline
    ) -> Iterator[Tensors | SlipwayError]:
        try:
            with connect_sse(line.http, extensions={"trace": line.traced}, **request) as source:
                if source.response.is_success:
                    yield from (_streamed(event.data) for event in source.iter_sse())
                else:
                    source.response.read()
                    yield _answer_error(self._url, source.response)
        except (httpx.TransportError, SSEError) as error:
            cut = Cancelled(f"{self._url}: the connection was cut before the answer's end; try again")
            yield cut if line.was_cut else _call_error(self._url, error, deadline)

    @staticmethod
    def _end(http: httpx.Client, request_id: str) -> bool | None:
        """Ask the server to end a request; tell whether it knows it, None where it cannot be asked."""
        path, content, headers = _ending(request_id)
        try:
            return _was_found(http.post(path, content=content, headers=headers, timeout=KNOWN_S))
        except (httpx.TransportError, RuntimeError):  # the latter when the client was closed
            return None

    def _get(self, path: str) -> httpx.Response:
        with self._pool(NO_SESSION) as pool:
            try:
                return pool.http.get(path)
            except httpx.TransportError as error:
                raise _unreachable(self._url, error) from None

    @contextlib.contextmanager
    def _pool(self, turn: Turn) -> Iterator[_Connections]:
        """Lend the connections for one request."""
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


class AsyncHttpTransport:
    """The same calls for asyncio."""

    def __init__(self, url: str, connect_timeout_s: float, certificates: Path | None = None) -> None:
        self._url = url
        make = partial(
            httpx.AsyncClient,
            base_url=_base(url),
            timeout=connect_timeout_s,
            limits=_LIMITS,
            verify=_verification(url, certificates),
        )
        self._pools = Pools(make, AGE_S)
        self._staying = Pools(make)  # a session is in the memory of one replica
        self._connect_timeout_s = connect_timeout_s

    async def close(self) -> None:
        """Close the connections."""
        for pool in (*self._pools.all(), *self._staying.all()):
            await pool.aclose()

    async def server_live(self) -> bool:
        """Ask whether the server answers at all."""
        return (await self._get("/v2/health/live")).is_success

    async def server_ready(self) -> bool:
        """Ask whether all of the server's models are ready."""
        return (await self._get("/v2/health/ready")).is_success

    async def model_ready(self, model: str) -> bool:
        """Ask whether a model is ready; an unknown one is not."""
        return (await self._get(f"{_path(model)}/ready")).is_success

    async def metadata(self, model: str) -> ModelMetadata:
        """Ask for a model's tensors."""
        return _metadata(_checked(self._url, await self._get(_path(model))))

    async def infer(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Tensors:
        """Call a model that answers once."""
        content, headers = infer_body(tensors, turn)
        timeout = _timeout(self._connect_timeout_s, deadline)
        async with self._pool(turn) as http:
            try:
                response = await http.post(
                    f"{_path(model)}/infer", content=content, headers=headers, timeout=timeout
                )
            except httpx.TransportError as error:
                raise _call_error(self._url, error, deadline) from None
            return _infer_tensors(_checked(self._url, response))

    async def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> AsyncGenerator[Tensors, None]:
        """Call a decoupled model; closing the generator or cancelling its task ends the work."""
        request_id, left_s = made_id(), deadline.remaining_s()
        request = _generate_request(model, tensors, turn, request_id, self._connect_timeout_s)
        async with self._pool(turn) as http:
            end, events = partial(self._end, http, request_id), self._events(http, request, deadline)
            async with contextlib.aclosing(async_answers(events, end, deadline, left_s)) as answered:
                async for found in answered:
                    yield found

    async def _events(
        self, http: httpx.AsyncClient, request: dict[str, Any], deadline: Deadline
    ) -> AsyncGenerator[Tensors | SlipwayError, None]:
        try:
            async with aconnect_sse(http, **request) as source:
                if source.response.is_success:
                    async for event in source.aiter_sse():
                        yield _streamed(event.data)
                else:
                    await source.response.aread()
                    yield _answer_error(self._url, source.response)
        except (httpx.TransportError, SSEError) as error:
            yield _call_error(self._url, error, deadline)

    @staticmethod
    async def _end(http: httpx.AsyncClient, request_id: str) -> bool | None:
        """As :meth:`HttpTransport._end`."""
        path, content, headers = _ending(request_id)
        try:
            return _was_found(await http.post(path, content=content, headers=headers, timeout=KNOWN_S))
        except (httpx.TransportError, RuntimeError):
            return None

    async def _get(self, path: str) -> httpx.Response:
        async with self._pool(NO_SESSION) as http:
            try:
                return await http.get(path)
            except httpx.TransportError as error:
                raise _unreachable(self._url, error) from None

    @contextlib.asynccontextmanager
    async def _pool(self, turn: Turn) -> AsyncIterator[httpx.AsyncClient]:
        """Lend the connections for one request."""
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


class _Line:
    """A connection that one stream at a time has for itself, so that it can be cut.

    Closing a socket does not wake a thread that waits for what comes over it; shutting it down does.

    Args:
        http: a client that nobody else uses.

    Attributes:
        was_cut: whether it takes no further request.
    """

    def __init__(self, http: httpx.Client) -> None:
        self.http, self.was_cut = http, False
        self._connected: Any = None

    def traced(self, event: str, info: Mapping[str, Any]) -> None:
        """Take note of what httpcore connects (its `trace` extension)."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._connected = info["return_value"]
            if self.was_cut:
                self.cut()

    def cut(self) -> None:
        """End the connection, now or as soon as there is one; whoever reads from it comes to its end."""
        self.was_cut = True
        if self._connected is not None:
            with contextlib.suppress(OSError):
                self._connected.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class _Connections:
    """The connections to a server: those of one client, which requests share, and lines for streams.

    Args:
        make: makes a client; nothing is connected by that.
    """

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self.http, self._make = make(), make
        self._lines: set[_Line] = set()
        self._idle: list[_Line] = []

    def close(self) -> None:
        """Close all; streams under way are cut."""
        self.http.close()
        for line in tuple(self._lines):
            line.cut()
            line.http.close()

    @contextlib.contextmanager
    def line(self) -> Iterator[_Line]:
        """Lend a line for one stream."""
        try:
            line = self._idle.pop()
        except IndexError:
            line = _Line(self._make())
            self._lines.add(line)
        try:
            yield line
        finally:
            if line.was_cut:
                self._lines.discard(line)
                line.http.close()
            else:
                self._idle.append(line)


def _verification(url: str, certificates: Path | None) -> ssl.SSLContext:
    """Return what connections are secured with, by default by the usual authorities."""
    tls = checked(certificates, secured=url.startswith("https://"))
    return httpx.create_ssl_context() if tls is None else tls.context()


def _base(url: str) -> str:
    return url if url.startswith(("http://", "https://")) else f"http://{url}"


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


def _timeout(connect_timeout_s: float, deadline: Deadline) -> httpx.Timeout:
    # The reading limit holds for each response; the deadline of the whole is looked at after each.
    return httpx.Timeout(connect_timeout_s, read=deadline.remaining_s(), pool=None)


def _generate_request(
    model: str, tensors: Tensors, turn: Turn, request_id: str, connect_timeout_s: float
) -> dict[str, Any]:
    """Return what httpx is told of a generation; whether its time is over is for who reads it to say."""
    return {
        "method": "POST",
        "url": f"{_path(model)}/generate_stream",
        "json": {"id": request_id, **_generate_body(tensors, turn)},
        "headers": turn_headers(turn),
        "timeout": httpx.Timeout(connect_timeout_s, read=None, pool=None),
    }


def _ending(request_id: str) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of the request that ends another."""
    model, tensors = ending(request_id)
    return f"{_path(model)}/infer", *infer_body(tensors, NO_SESSION)


def _was_found(response: httpx.Response) -> bool | None:
    return was_found(_infer_tensors(response)) if response.is_success else None


def _generate_body(tensors: Tensors, turn: Turn) -> dict[str, Any]:
    """Return the JSON object of a request; Triton takes arrays flat there, their shapes go beside them."""
    body: dict[str, Any] = turn_parameters(turn)
    for name, array in tensors.items():
        values = [_json(value) for value in array.reshape(-1).tolist()]
        body[name] = values[0] if len(values) == 1 else values
        if array.ndim > 1:
            body[f"{SHAPE_PARAMETER}{name}"] = ",".join(map(str, array.shape))
    return body


def _json(value: Any) -> Any:
    """Return an element as JSON has it; bytes that are no text as base64, which their field reads."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _streamed(text: str) -> Tensors | SlipwayError:
    """Return what an event of the stream carries, an error too."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        return Unrecoverable(f"the stream must carry JSON, got {text[:80]!r} ({error})")
    if not isinstance(fields, dict):
        return Unrecoverable(f"the stream must carry JSON objects, got {text[:80]!r}")
    if "error" in fields:
        return from_wire(str(fields["error"]))
    return {
        name: _array(value) for name, value in fields.items() if name not in ("model_name", "model_version")
    }


def _array(value: Any) -> np.ndarray[Any, Any]:
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return np.array([item.encode() for item in values], dtype=np.object_)
    return np.array(values)


def infer_body(tensors: Tensors, turn: Turn) -> tuple[bytes, dict[str, str]]:
    """Return the body of an infer request, its tensors in binary, and its headers."""
    blobs = [to_bytes(array) for array in tensors.values()]
    inputs = [
        {
            "name": name,
            "datatype": datatype_of(array),
            "shape": list(array.shape),
            "parameters": {"binary_data_size": len(blob)},
        }
        for (name, array), blob in zip(tensors.items(), blobs, strict=True)
    ]
    parameters = {"binary_data_output": True, **turn_parameters(turn)}
    header = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    return header + b"".join(blobs), {_HEADER_LENGTH: str(len(header)), **turn_headers(turn)}


def _infer_tensors(response: httpx.Response) -> Tensors:
    body = response.content
    start = int(response.headers.get(_HEADER_LENGTH, len(body)))
    tensors = {}
    for output in json.loads(body[:start])["outputs"]:
        end = start + output["parameters"]["binary_data_size"]
        tensors[output["name"]] = from_bytes(body[start:end], output["datatype"], output["shape"])
        start = end
    return tensors


def _metadata(response: httpx.Response) -> ModelMetadata:
    content = response.json()
    inputs, outputs = (
        tuple(TensorMetadata(t["name"], t["datatype"], tuple(t["shape"])) for t in content.get(side, ()))
        for side in ("inputs", "outputs")
    )
    return ModelMetadata(content["name"], tuple(content["versions"]), inputs, outputs)


def _checked(url: str, response: httpx.Response) -> httpx.Response:
    if not response.is_success:
        raise _answer_error(url, response)
    return response


def _answer_error(url: str, response: httpx.Response) -> SlipwayError:
    """Return the error in an answer with a failing status: JSON, alone or as a server-sent event."""
    text = response.text.strip().removeprefix("data:")
    try:
        text = str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        text = text[:200] or f"HTTP status {response.status_code}"
    if response.status_code == httpx.codes.NOT_FOUND and UnknownModel.said in text:
        return UnknownModel(f"{url}: {text}")
    return from_wire(text, response.status_code)


def _call_error(url: str, error: Exception, deadline: Deadline) -> SlipwayError:
    if isinstance(error, httpx.ReadTimeout):
        return deadline.exceeded()
    if isinstance(error, SSEError):
        return Unrecoverable(f"{url}: {error}")
    return _unreachable(url, error)


def _unreachable(url: str, error: Exception) -> NotReady:
    reason = str(error) or type(error).__name__
    return NotReady(f"{url}: unavailable over HTTP: {reason}; try another url, or `slipway serve` there")
