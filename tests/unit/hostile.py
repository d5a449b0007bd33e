"""Peers that misbehave: raw sockets that answer what a test says, and gRPC servers without a proper service.

None of them stands for Triton: they are what a wrong address, a broken server or an attacker answers.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

IDENTITY = {
    "name": "triton",
    "version": "2.51.0",
    "extensions": ["model_repository", "model_configuration", "binary_tensor_data"],
}
"""What makes a peer pass for Triton, so that its later answers are read."""
Answer = Callable[[socket.socket], None]


def answered(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return an HTTP answer with a body of stated length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def once(data: bytes) -> Answer:
    """Return an answer of all bytes at once."""
    return lambda connection: connection.sendall(data)


def dripping(head: bytes, piece: bytes = b" ", every_s: float = 0.05) -> Answer:
    """Return an answer that begins and never ends: a piece comes again and again until the peer goes."""

    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        connection.settimeout(every_s)
        while True:
            with contextlib.suppress(TimeoutError):
                if not connection.recv(65536):
                    return
            connection.sendall(piece)

    return send


def metadata_of(model: str, inputs: list[Any], outputs: list[Any]) -> bytes:
    """Return a model's metadata as JSON."""
    return json.dumps({"name": model, "versions": ["1"], "inputs": inputs, "outputs": outputs}).encode()


@contextlib.contextmanager
def http_peer(paths: dict[str, Answer], otherwise: bytes = b"{}") -> Iterator[str]:
    """Yield "HOST:PORT" of a peer that answers HTTP.

    Args:
        paths: Answer by the end of a request's path; the server's identity is answered unless it is here.
        otherwise: Body for all other paths, with status 200.
    """
    known = {"/v2": once(answered(json.dumps(IDENTITY).encode())), **paths}
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while request := _request(connection):
                path = request.split(b" ")[1].decode()
                found = [answer for end, answer in known.items() if path.endswith(end)]
                (found[0] if found else once(answered(otherwise)))(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connections.append(listener.accept()[0])
                threading.Thread(target=serve, args=(connections[-1],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for each in (listener, *connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _request(connection: socket.socket) -> bytes:
    """Return a whole request; nothing where the caller has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return b""
        data += more
        if not data[:1].isalpha():  # no request of HTTP: TLS, or HTTP/2
            connection.sendall(answered(b"", status="400 Bad Request"))
            return b""
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < length:
        body += connection.recv(65536)
    return head


@contextlib.contextmanager
def grpc_peer(methods: dict[str, Callable[[bytes], Iterator[bytes]]]) -> Iterator[str]:
    """Yield "HOST:PORT" of a peer that answers gRPC.

    Args:
        methods: By the name of a method what turns a message's bytes into those of the answers; the server's
            identity and readiness are answered unless they are here. Other methods are unimplemented.
    """
    identity = service_pb2.ServerMetadataResponse(**IDENTITY)
    known: dict[str, Callable[[bytes], Iterator[bytes]]] = {
        "ServerMetadata": lambda _: iter([identity.SerializeToString()]),
        "ServerReady": lambda _: iter([service_pb2.ServerReadyResponse(ready=True).SerializeToString()]),
        "ModelReady": lambda _: iter([service_pb2.ModelReadyResponse(ready=True).SerializeToString()]),
        **methods,
    }

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            answer = known.get(details.method.rpartition("/")[2])
            if answer is None:
                return None
            if details.method.endswith("ModelStreamInfer"):
                return grpc.stream_stream_rpc_method_handler(lambda sent, _: answer(next(sent)))
            return grpc.unary_unary_rpc_method_handler(lambda sent, _: next(answer(sent)))

    server = grpc.server(ThreadPoolExecutor(16), [Handlers()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)
