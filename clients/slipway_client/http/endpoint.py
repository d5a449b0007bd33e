"""HTTP endpoint of a Triton server: state, requests and decoding that both transports share."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
from httpx_sse import SSEError

from slipway_client.address_errors import error_texts, not_triton_error, unreachable_error
from slipway_client.cancellation import (
    cancel_message,
    request_found,
)
from slipway_client.decoding import ERRORS, decoding
from slipway_client.http import messages
from slipway_client.metadata import ModelMetadata
from slipway_client.tensors import Tensors, turn_headers
from slipway_client.tls import load_tls
from slipway_serving.protocol.errors import InvalidRequest, Malformed, SlipwayError
from slipway_serving.protocol.proxies import HTTP, HTTPS, Proxy, proxy_of
from slipway_serving.protocol.triton_identity import extensions, is_triton
from slipway_serving.protocol.turns import NO_SESSION, Turn

_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
INDEX = "/v2/repository/index"
STATISTICS = "/v2/models/stats"


class HttpEndpoint:
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

    def _models(self, response: httpx.Response) -> tuple[str, ...]:
        with decoding(self._url, "statistics"):
            return messages.ready_models(self._check_status(response))

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


@contextlib.contextmanager
def check_proxy(proxy: Proxy | None) -> Iterator[None]:
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


def model_path(model: str) -> str:
    """Return the path of a model's endpoints."""
    return f"/v2/models/{quote(model, safe='')}"


def generate_request(model: str, tensors: Tensors, turn: Turn, request_id: str) -> dict[str, Any]:
    """Return the arguments of httpx for a generation; the reader enforces the time limit."""
    return {
        "method": "POST",
        "url": f"{model_path(model)}/generate_stream",
        "json": {"id": request_id, **messages.generate_body(tensors, turn)},
        "headers": turn_headers(turn),
    }


def cancel_request(request_id: str, *, stop: bool = False) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of the request that ends another request, or stops it."""
    model, tensors = cancel_message(request_id, stop=stop)
    return f"{model_path(model)}/infer", *messages.infer_body(tensors, NO_SESSION)


def parse_found(response: httpx.Response) -> bool | None:
    """Return True if the server found the request to end, or None if its answer cannot be decoded."""
    try:
        return request_found(messages.infer_tensors(response)) if response.is_success else None
    except (Malformed, *ERRORS):
        return None
