"""Checks of every request before its route runs: Host, Origin and the size of the body.

:class:`Guard` is an ASGI middleware around the whole application, for HTTP and for WebSockets. Where callers
need no key, only the loopback address keeps others out. A web page could get around that through a browser
on this machine, with a DNS name of its own that resolves to this machine, or with a cross-site request; the
checks of Host and Origin prevent both. Pages of other sites may call the API only from allowed origins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from slipway_gateway.errors import ApiError, answer_to
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.proxies import is_loopback

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that probes and Prometheus call by the address of a machine, where `server_names` is given."""
_METHODS = "GET, HEAD, POST, PATCH, DELETE"
_HEADER = re.compile(r"[a-z0-9-]{1,64}")
_MAX_HEADERS = 64
_EXPOSED_HEADERS = (
    "accept-ranges, content-disposition, content-length, content-range, etag, openai-poll-after-ms,"
    " retry-after, x-inference-time-s, x-request-id, x-should-retry, x-stage-durations"
)
_PREFLIGHT_AGE_S = 600
_POLICY_VIOLATION = 1008


@dataclass(frozen=True)
class GuardSettings:
    """Configuration of :class:`Guard`.

    Attributes:
        keys_required: True if callers must present a key; False is for loopback addresses only.
        server_names: Host names under which callers may address the API; empty for any name where keys are
            required. The names of this machine itself are always allowed where no keys are required.
        allow_origins: Origins of other sites whose pages may call the API, for example
            "https://studio.example.org"; "*" for every origin, only where keys are required.
        body_bytes: Largest body of a request, in bytes.
        body_limits: Largest body for paths that begin with a prefix, in bytes; the longest prefix decides.

    Raises:
        InvalidRequest: An origin or a host name is malformed.
    """

    keys_required: bool
    server_names: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    body_bytes: int = 1 << 16
    body_limits: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for origin in self.allow_origins:
            scheme, _, authority = origin.partition("://")
            is_origin = scheme in {"http", "https"} and authority and not set(authority) & set("/?#@ *")
            if not (is_origin or (origin == "*" and self.keys_required)):
                raise InvalidRequest(
                    "gateway: allow_origin must be a scheme, a host and perhaps a port (* only where keys are"
                    f" required), got {origin!r}; try https://studio.example.org"
                )
        for name in self.server_names:
            if not name or set(name) & set("/?#@ *"):
                raise InvalidRequest(
                    f"gateway: server_name must be a host name without a port, got {name!r}; try"
                    " slipway.example.org"
                )
        lower = tuple(name.lower().strip("[]") for name in self.server_names)
        object.__setattr__(self, "server_names", lower)
        object.__setattr__(self, "allow_origins", tuple(origin.lower() for origin in self.allow_origins))

    def body_limit(self, path: str) -> int:
        """Return the largest body for a path, in bytes."""
        prefixes = [prefix for prefix in self.body_limits if path.startswith(prefix)]
        return self.body_limits[max(prefixes, key=len)] if prefixes else self.body_bytes

    def allows_host(self, host: str, path: str) -> bool:
        """Return True if a Host header, with or without a port, may be used for a path."""
        name = host_name(host)
        if not self.keys_required:
            return is_loopback(name) or name in self.server_names
        return not self.server_names or name in self.server_names or path in OPEN_PATHS

    def allows_origin(self, origin: str) -> bool:
        """Return True if pages of another site's origin may call the API."""
        return origin.lower() in self.allow_origins or "*" in self.allow_origins


class Guard:
    """ASGI middleware that checks requests; see :class:`GuardSettings`.

    Args:
        app: Application behind the checks.
        settings: Configuration.
    """

    def __init__(self, app: App, settings: GuardSettings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then pass it on or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = _Headers(scope["headers"])
        added = self._cors_headers(headers)
        try:
            self._check_source(scope, headers)
            if scope["type"] == "websocket":
                await self._app(scope, receive, send)
                return
            if scope["method"] == "OPTIONS" and headers.one("access-control-request-method") is not None:
                await self._answer_preflight(headers, added, send)
                return
            limit = self._settings.body_limit(scope["path"])
            self._check_length(headers, limit)
        except ApiError as error:
            await _refuse(scope, error, added, send)
            return
        await _Exchange(scope, receive, send, limit, added).run(self._app)

    def _check_source(self, scope: Scope, headers: _Headers) -> None:
        """Refuse a request for another host, or from a page of another site that may not send it."""
        host = headers.one("host")
        if host is None or not self._settings.allows_host(host, scope["path"]):
            raise _forbidden(
                f"gateway: host must be a name of this server, got {host!r}; try the address that the server"
                " prints, or ask the operator for --server-name",
                "host_not_allowed",
            )
        origin = headers.one("origin")
        browser_only = not self._settings.keys_required or scope["type"] == "websocket"
        if origin is None and "origin" not in headers:
            foreign = headers.one("sec-fetch-site") in {"cross-site", "same-site"}
            # A link on another site may lead here: the page that it opens cannot be read by that site.
            is_link = scope.get("method") == "GET" and headers.one("sec-fetch-mode") == "navigate"
            refused = foreign and not is_link
        else:
            own = origin is not None and origin.lower() in (
                f"http://{host}".lower(),
                f"https://{host}".lower(),
            )
            refused = not own and (origin is None or not self._settings.allows_origin(origin))
        if refused and browser_only:
            raise _forbidden(
                f"gateway: origin must be that of this server, or an allowed one, got {origin!r}; ask the"
                " operator for --allow-origin",
                "origin_not_allowed",
            )

    def _cors_headers(self, headers: _Headers) -> Headers:
        """Return the headers that let a page of an allowed origin read the answer."""
        if not self._settings.allow_origins:
            return []
        origin = headers.one("origin")
        vary = (b"vary", b"Origin")
        if origin is None or not self._settings.allows_origin(origin):
            return [vary]
        return [
            vary,
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED_HEADERS.encode()),
        ]

    async def _answer_preflight(self, headers: _Headers, added: Headers, send: Send) -> None:
        """Answer the question of a browser whether a page may send a request."""
        origin = headers.one("origin")
        if origin is None or not self._settings.allows_origin(origin):
            raise _forbidden(
                f"gateway: origin must be an allowed one, got {origin!r}; ask the operator for"
                " --allow-origin",
                "origin_not_allowed",
            )
        # Libraries send headers of their own (x-stainless-…), so every header with a plain name is allowed.
        wanted = (headers.one("access-control-request-headers") or "").lower().replace(" ", "").split(",")
        names = [name for name in wanted[:_MAX_HEADERS] if _HEADER.fullmatch(name)]
        allowed = [
            (b"access-control-allow-methods", _METHODS.encode()),
            (b"access-control-allow-headers", ", ".join(names).encode()),
            (b"access-control-max-age", str(_PREFLIGHT_AGE_S).encode()),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": added + allowed})
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    def _check_length(headers: _Headers, limit: int) -> None:
        length = headers.one("content-length")
        if length is None:
            return
        if not (length.isascii() and length.isdigit()):
            raise ApiError(
                f"gateway: content-length must be a number, got {length[:40]!r}",
                status=400,
                code="invalid_value",
                param="content-length",
            )
        # Python refuses to convert more than 4,300 digits.
        if len(length) > 18 or int(length) > limit:
            raise _too_large(limit, f"{length[:20]} bytes")


class _Exchange:
    """One request whose body is counted while the application reads it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limit: int, added: Headers) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._limit, self._added = limit, added
        self._read_bytes = 0
        self._error: ApiError | None = None
        self._started = False

    async def run(self, app: App) -> None:
        """Run the application, and answer in its place if the body is too large."""
        try:
            await app(self._scope, self.receive, self.send)
        except ApiError as error:
            if error is not self._error:
                raise
        if self._error is not None and not self._started:
            await _refuse(self._scope, self._error, self._added, self._send)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read_bytes += len(message.get("body", b""))
            if self._read_bytes > self._limit:
                self._error = _too_large(self._limit, "a longer one")
        if self._error is not None:
            raise self._error
        return message

    async def send(self, message: Message) -> None:
        if self._error is not None and not self._started:
            # Frameworks turn an error while they read a body into an answer of their own.
            return
        if message["type"] == "http.response.start":
            self._started = True
            own = (b"x-content-type-options", b"nosniff")
            message = {**message, "headers": [*message.get("headers", ()), own, *self._added]}
        await self._send(message)


class _Headers:
    """Headers of a request by name in lower case."""

    def __init__(self, headers: Headers) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in headers:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def one(self, name: str) -> str | None:
        """Return the value of a header; None if it is missing or given several times."""
        values = self._values.get(name, [])
        return values[0] if len(values) == 1 else None


def host_name(host: str) -> str:
    """Return the name in a Host header, in lower case, without its port and the brackets of IPv6."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[").lower()
    return host.partition(":")[0].lower()


def _forbidden(message: str, code: str) -> ApiError:
    return ApiError(message, status=403, code=code, final=True)


def _too_large(limit: int, got: str) -> ApiError:
    return ApiError(
        f"gateway: the body must be at most {limit} bytes, got {got}; try a smaller one",
        status=413,
        code="body_too_large",
        final=True,
    )


async def _refuse(scope: Scope, error: ApiError, added: Headers, send: Send) -> None:
    """Answer a request with an error, or reject the handshake of a WebSocket with status 403."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "forbidden"})
        return
    answer = answer_to(error)
    body = json.dumps(answer.content).encode()
    headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *added]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
