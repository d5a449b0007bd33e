"""An HTTP endpoint that tells whether a server is ready or lives, with the processes of its Python models.

Triton goes on answering "ready" when the process of a Python model was killed. The command
``slipway ready --processes`` looks at the processes too, but starts Python each time, which costs half a
second of processor time. Kubernetes asks this endpoint of ``slipway serve`` instead: ``GET /ready`` and
``GET /live`` answer 200, or 503 with the reason. Each connection has a thread of its own until its caller was
silent for five seconds.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6
from typing import Any

from slipway_serving.errors import InvalidRequest, NotReady

_CALLER_S = 5.0
"""Longest wait for a caller's bytes, seconds."""
_TRITON_S = 5.0
"""Longest wait for an answer of Triton, seconds."""


def check_health(http_url: str, state: str) -> None:
    """Ask Triton whether it is what it should be.

    Args:
        http_url: "HOST:PORT" of Triton's HTTP endpoint.
        state: "ready" or "live".

    Raises:
        NotReady: Triton does not answer, or says no.
    """
    connection = http.client.HTTPConnection(http_url, timeout=_TRITON_S)
    try:
        connection.request("GET", f"/v2/health/{state}")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise NotReady(
            f"ready: tritonserver must answer at {http_url}, got {type(error).__name__}; see the server's log"
        ) from None
    finally:
        connection.close()
    if status != HTTPStatus.OK:
        raise NotReady(f"ready: tritonserver must be {state}, got HTTP status {status}; see the server's log")


class Probes:
    """The endpoint, which answers from its beginning until it is closed."""

    def __init__(self, host: str, port: int, check: Callable[[str], None]) -> None:
        """Open the endpoint.

        Args:
            host: IPv4 or IPv6 address to listen on.
            port: Port to listen on.
            check: Raises NotReady when the server is not "ready", or not "live".

        Raises:
            InvalidRequest: The port is in use.
        """

        class Handler(_Handler):
            checked = staticmethod(check)

        class Listener(ThreadingHTTPServer):
            address_family = AF_INET6 if ":" in host else AF_INET
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Let a connection go that its caller broke."""

        try:
            self._listener = Listener((host, port), Handler)
        except OSError as error:
            raise InvalidRequest(
                f"server: probe_port must be free on {host}, got {port} ({error.strerror}); try --probe-port"
            ) from None
        self._thread = threading.Thread(target=self._listener.serve_forever, name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the endpoint; answers that are under way are not waited for."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    checked: Callable[[str], None]
    timeout = _CALLER_S
    server_version, sys_version = "slipway", ""  # without Python's version

    def do_GET(self) -> None:
        """Answer whether the server is what the path names."""
        state = self.path.removeprefix("/")
        if state not in ("ready", "live"):
            return self._answer(HTTPStatus.NOT_FOUND, "path must be /ready or /live")
        try:
            type(self).checked(state)
        except NotReady as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return self._answer(HTTPStatus.OK, state)

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write no line for each probe."""
