"""HTTP as bytes, for what no client library would send."""

from __future__ import annotations

import socket
from contextlib import closing

from slipway_serving.triton.server import Server

LIMIT_S = 120.0


def connect(server: Server) -> socket.socket:
    """Open a connection to a server's HTTP port."""
    return socket.create_connection((server.config.host, server.config.http_port), timeout=LIMIT_S)


def post(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    """Return a POST request whose connection ends with it."""
    told = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {told}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def send(server: Server, request: bytes) -> tuple[int, str]:
    """Send bytes and no more; return the status, 0 where the server hung up without one, and the text."""
    with closing(connect(server)) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(1 << 16):
                answer += chunk
        except OSError:
            return 0, ""
    head, _, text = answer.partition(b"\r\n\r\n")
    status = head.split(b" ")[1] if head.count(b" ") else b"0"
    return int(status), text.decode(errors="replace")
