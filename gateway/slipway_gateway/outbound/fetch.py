"""Requests to URLs that callers name, without reaching the gateway's own network.

A request connects to an address that :mod:`slipway_gateway.outbound.addresses` has checked, while TLS and
the Host header keep the name. Redirects are refused, since they would lead to an unchecked address. The
proxies of the environment (``http_proxy``, ``https_proxy``, ``all_proxy``) are ignored: a proxy would resolve
the name again, and could reach what the gateway must not. The size of the answer and the time of the whole
request are bounded.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import httpx

from slipway_gateway.outbound.addresses import Resolve, Target, checked_target, resolve
from slipway_serving.protocol.errors import InvalidRequest

# A host with more addresses than this is not tried any further.
_MAX_ADDRESSES = 3
# No answer to a webhook needs to be longer; it is read only to leave the connection in order.
_ANSWER_BYTES = 1 << 16
_HEADERS = {"user-agent": "slipway-gateway", "accept": "*/*", "accept-encoding": "identity"}


@dataclass(frozen=True)
class Fetched:
    """Answer to a request.

    Attributes:
        data: Bytes of the answer.
        content_type: Media type that the server names, in lower case without parameters; "" if it names none.
    """

    data: bytes
    content_type: str


class BadStatus(InvalidRequest):
    """Error: a server has answered with a status that is no success.

    Args:
        message: Sentence for people.
        status: Status of the answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Connecting:
    """Conditions under which connections are made.

    Attributes:
        allow_private: True to allow private and loopback addresses too.
        resolve: Resolver of host names.
        tls: Certificates that are trusted; None for those of ``SSL_CERT_FILE`` or of the package certifi.
    """

    allow_private: bool = False
    resolve: Resolve = resolve
    tls: ssl.SSLContext | None = None


async def fetch_public(
    url: str,
    *,
    max_bytes: int,
    timeout_s: float,
    allow_private: bool = False,
    field: str = "input_reference",
    connecting: Connecting | None = None,
) -> Fetched:
    """Fetch a URL from the internet.

    Args:
        url: URL from a caller, http or https.
        max_bytes: Largest size of the answer, in bytes.
        timeout_s: Longest time for everything, the resolver included, in seconds.
        allow_private: True to allow private and loopback addresses too.
        field: Name of the field that had the URL, for messages.
        connecting: Resolver and certificates, for tests; `allow_private` is ignored if it is given.

    Raises:
        InvalidRequest: The URL is not allowed, or its server does not answer with a file of the allowed size
            in time; the message names the field and the reason.
    """
    conditions = connecting or Connecting(allow_private=allow_private)
    _, answer = await _exchange("GET", url, b"", {}, field, max_bytes, timeout_s, conditions)
    return answer


async def post_public(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    field: str = "webhook_url",
    connecting: Connecting | None = None,
) -> int:
    """Send a body to a URL on the internet, and return the status of the answer.

    Args:
        url: URL from a caller, http or https.
        body: Body to send.
        headers: Headers to send.
        timeout_s: Longest time for everything, the resolver included, in seconds.
        field: Name of the field that had the URL, for messages.
        connecting: Conditions of the connection.

    Raises:
        BadStatus: The server answers with a status that is no success.
        InvalidRequest: The URL is not allowed, or its server does not answer in time.
    """
    status, _ = await _exchange(
        "POST", url, body, headers, field, _ANSWER_BYTES, timeout_s, connecting or Connecting()
    )
    return status


async def _exchange(
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    field: str,
    max_bytes: int,
    timeout_s: float,
    conditions: Connecting,
) -> tuple[int, Fetched]:
    """Send one request and read its answer, within the time for everything."""
    try:
        # The client's own limits apply to each read, which a server that sends a byte a second never exceeds.
        async with asyncio.timeout(timeout_s):
            target = await checked_target(
                url, field=field, allow_private=conditions.allow_private, resolve=conditions.resolve
            )
            client = httpx.AsyncClient(
                trust_env=False,
                follow_redirects=False,
                timeout=timeout_s,
                verify=conditions.tls or _trusted(),
            )
            async with client:
                return await _to_any_address(client, method, target, body, headers, max_bytes)
    except TimeoutError:
        raise InvalidRequest(
            f"{field} must be a URL whose server answers completely within {timeout_s:g} s, got none in time"
        ) from None


async def _to_any_address(
    client: httpx.AsyncClient,
    method: str,
    target: Target,
    body: bytes,
    headers: Mapping[str, str],
    max_bytes: int,
) -> tuple[int, Fetched]:
    """Send the request to the first address of a host that accepts a connection."""
    refused: Exception | None = None
    for address in target.addresses[:_MAX_ADDRESSES]:
        request = client.build_request(
            method,
            target.url.copy_with(host=address, fragment=None),
            content=body if method == "POST" else None,
            headers={**_HEADERS, **headers, "host": target.url.netloc.decode("ascii")},
            extensions={"sni_hostname": target.url.raw_host.decode("ascii")},
        )
        try:
            return await _send(client, request, target, max_bytes)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            refused = error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise _unusable(target, f"an answer that breaks off ({type(error).__name__})") from None
    raise _unusable(target, f"no connection ({_reason(refused)})") from None


async def _send(
    client: httpx.AsyncClient, request: httpx.Request, target: Target, max_bytes: int
) -> tuple[int, Fetched]:
    response = await client.send(request, stream=True)
    try:
        if response.is_redirect or 300 <= response.status_code < 400:
            raise _unusable(target, f"a redirect (status {response.status_code})")
        if not response.is_success:
            raise BadStatus(
                str(_unusable(target, f"status {response.status_code}")), status=response.status_code
            )
        # The request allows no compression, so that a small answer cannot unpack to a large one.
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise _unusable(target, "a compressed answer")
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > max_bytes:
                raise InvalidRequest(
                    f"{target.field} must be a URL of a file of at most {max_bytes} bytes, got a longer one"
                )
        told = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return response.status_code, Fetched(bytes(data), told)
    finally:
        await response.aclose()


def _unusable(target: Target, got: str) -> InvalidRequest:
    return InvalidRequest(
        f"{target.field} must be a URL whose server answers with a status of 2xx and a plain body, got {got}"
        f" from {target.url.host[:80]!r}; try a direct link"
    )


def _reason(error: Exception | None) -> str:
    """Return why a connection failed, in words that show no address."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return "TLS or TCP" if error is not None else "no address"


@cache
def _trusted() -> ssl.SSLContext:
    # Reading the certificates takes tens of milliseconds, so they are read once.
    return httpx.create_ssl_context(trust_env=True)
