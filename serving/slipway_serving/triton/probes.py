"""HTTP endpoint for Kubernetes probes that also checks the processes of the server's Python models.

Triton keeps answering "ready" after the process of a Python model was killed. The command
``slipway ready --processes`` checks the processes too, but starts Python each time, which costs half a second
of processor time. Kubernetes probes this endpoint of ``slipway serve`` instead: ``GET /ready`` and
``GET /live`` answer 200, or 503 with the reason. Each connection has its own thread until its caller has been
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

from slipway_serving.protocol.errors import InvalidRequest, NotReady

_CALLER_S = 5.0
"""Longest wait for a caller's bytes, in seconds."""
_TRITON_S = 5.0
"""Longest wait for Triton's answer, in seconds."""


def check_health(http_url: str, state: str) -> None:
    """Check that Triton reports itself ready or live.

    Args:
        http_url: "HOST:PORT" of Triton's HTTP endpoint.
        state: State to check, "ready" or "live".

    Raises:
        NotReady: Triton does not answer, or is not in this state.
    """
    connection = http.client.HTTPConnection(http_url, timeout=_TRITON_S)
    try:
        connection.request("GET", f"/v2/health/{state}")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise NotReady(
            f"ready: tritonserver does not answer at {http_url} ({type(error).__name__});"
            " see the server's log"
        ) from None
    finally:
        connection.close()
    if status != HTTPStatus.OK:
        raise NotReady(f"ready: tritonserver is not {state} (HTTP status {status}); see the server's log")


class ProbeEndpoint:
    """Probe endpoint, which answers from its creation until it is closed."""

    def __init__(self, host: str, port: int, check: Callable[[str], None]) -> None:
        """Open the endpoint.

        Args:
            host: IPv4 or IPv6 address to listen on.
            port: Port to listen on.
            check: Function that raises NotReady if the server is not in the given state, "ready" or "live".

        Raises:
            InvalidRequest: The port is in use.
        """

        class Handler(_Handler):
            checked = staticmethod(check)

        class Listener(ThreadingHTTPServer):
            address_family = AF_INET6 if ":" in host else AF_INET
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Ignore a connection that its caller broke."""

        try:
            self._listener = Listener((host, port), Handler)
        except OSError as error:
            raise InvalidRequest(
                f"server: probe_port must be free on {host}, got {port} ({error.strerror}); try --probe-port"
            ) from None
        self._thread = threading.Thread(target=self._listener.serve_forever, name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the endpoint without waiting for answers in progress."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    checked: Callable[[str], None]
    timeout = _CALLER_S
    server_version, sys_version = "slipway", ""  # the header Server must not show Python's version

    def do_GET(self) -> None:
        """Answer whether the server is in the state that the path names."""
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
        """Suppress the log line of each probe."""
