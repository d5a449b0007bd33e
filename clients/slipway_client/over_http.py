"""Triton's HTTP protocol: JSON over server-sent events for generations, a sync and an asyncio transport.

A generation is one POST to ``/v2/models/<model>/generate_stream``: the request's fields as a JSON object,
one event per response. Closing the connection cancels the request: Triton 2.51 tells the model within some
ten milliseconds, without waiting for its next response. One answer for one request goes to ``/infer`` with
the tensors' bytes behind a JSON header.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
from httpx_sse import SSEError, aconnect_sse, connect_sse

from slipway_client.connections import AGE_S, Pools
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
from slipway_serving.errors import NotReady, SlipwayError, Unrecoverable, from_wire
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
        self._pools = Pools(make, AGE_S)
        self._staying = Pools(make)  # a session is in the memory of one replica
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
        with self._pool(turn) as http:
            try:
                response = http.post(
                    f"{_path(model)}/infer", content=content, headers=headers, timeout=timeout
                )
            except httpx.TransportError as error:
                raise _call_error(self._url, error, deadline) from None
            return _infer_tensors(_checked(self._url, response))

    def stream(
        self, model: str, tensors: Tensors, deadline: Deadline, turn: Turn = NO_SESSION
    ) -> Generator[Tensors, None, None]:
        """Call a decoupled model; closing the generator closes the connection."""
        timeout = _timeout(self._connect_timeout_s, deadline)
        path, body = f"{_path(model)}/generate_stream", _generate_body(tensors, turn)
        headers = turn_headers(turn)
        with self._pool(turn) as http:
            try:
                with connect_sse(http, "POST", path, json=body, headers=headers, timeout=timeout) as source:
                    if not source.response.is_success:
                        source.response.read()
                        raise _answer_error(self._url, source.response)
                    for event in source.iter_sse():
                        deadline.remaining_s()
                        yield _streamed(event.data)
            except (httpx.TransportError, SSEError) as error:
                raise _call_error(self._url, error, deadline) from None

    def _get(self, path: str) -> httpx.Response:
        with self._pool(NO_SESSION) as http:
            try:
                return http.get(path)
            except httpx.TransportError as error:
                raise _unreachable(self._url, error) from None

    @contextlib.contextmanager
    def _pool(self, turn: Turn) -> Iterator[httpx.Client]:
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
        """Call a decoupled model; closing the generator or cancelling its task closes the connection."""
        timeout = _timeout(self._connect_timeout_s, deadline)
        path, body = f"{_path(model)}/generate_stream", _generate_body(tensors, turn)
        headers = turn_headers(turn)
        async with self._pool(turn) as http:
            try:
                async with aconnect_sse(
                    http, "POST", path, json=body, headers=headers, timeout=timeout
                ) as source:
                    if not source.response.is_success:
                        await source.response.aread()
                        raise _answer_error(self._url, source.response)
                    async for event in source.aiter_sse():
                        deadline.remaining_s()
                        yield _streamed(event.data)
            except (httpx.TransportError, SSEError) as error:
                raise _call_error(self._url, error, deadline) from None

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


def _verification(url: str, certificates: Path | None) -> ssl.SSLContext | bool:
    """Return what a connection is secured with, or True for the usual authorities."""
    tls = checked(certificates, secured=url.startswith("https://"))
    return True if tls is None else tls.context()


def _base(url: str) -> str:
    return url if url.startswith(("http://", "https://")) else f"http://{url}"


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


def _timeout(connect_timeout_s: float, deadline: Deadline) -> httpx.Timeout:
    # The reading limit holds for each response; the deadline of the whole is looked at after each.
    return httpx.Timeout(connect_timeout_s, read=deadline.remaining_s(), pool=None)


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


def _streamed(text: str) -> Tensors:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise Unrecoverable(f"the stream must carry JSON, got {text[:80]!r} ({error})") from None
    if not isinstance(fields, dict):
        raise Unrecoverable(f"the stream must carry JSON objects, got {text[:80]!r}")
    if "error" in fields:
        raise from_wire(str(fields["error"]))
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
