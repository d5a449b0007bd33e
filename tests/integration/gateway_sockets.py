"""A gateway with its sockets only, in a thread, and those who connect to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from server_fixtures import wait_until
from starlette.requests import HTTPConnection
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from slipway_gateway.errors import ApiError, answer_to
from slipway_gateway.realtime.routes import router
from slipway_gateway.replicas.replicas import Replicas
from slipway_serving.protocol.errors import SlipwayError

ANSWER_S = 300.0
Message = dict[str, Any]


@dataclass(frozen=True)
class Caller:
    """Key of a caller, which the tests name in a header."""

    id: str


async def authenticate(connection: HTTPConnection) -> Caller:
    """Let everybody in, except who names the wrong key."""
    name = connection.headers.get("x-key", "tester")
    if name == "wrong":
        raise ApiError("key: key must be valid", status=401, code="invalid_api_key")
    return Caller(name)


@dataclass
class Gateway:
    """A gateway that runs in a thread."""

    replicas: Replicas
    loop: asyncio.AbstractEventLoop
    port: int

    def socket(self, path: str, **headers: str) -> ClientConnection:
        """Connect to a socket of the gateway."""
        return connect(
            f"ws://127.0.0.1:{self.port}{path}",
            max_size=None,
            additional_headers={name.replace("_", "-"): value for name, value in headers.items()},
            open_timeout=ANSWER_S,
            proxy=None,
        )


@contextmanager
def running_gateway(
    addresses: Sequence[str], metrics_urls: Mapping[str, str] = {}, resume_s: float = 30.0
) -> Iterator[Gateway]:
    """Run a gateway in a thread; its worlds end with the block."""
    started, made = threading.Event(), []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        replicas = Replicas(addresses, metrics_urls=metrics_urls, poll_s=0.5)
        await replicas.start()
        app = FastAPI()
        app.include_router(router(replicas, authenticate, resume_s=resume_s))

        @app.exception_handler(SlipwayError)
        async def answer(_: Any, error: SlipwayError) -> JSONResponse:
            found = answer_to(error)
            return JSONResponse(found.content, found.status, found.headers)

        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        made.append((server, replicas, server.servers[0].sockets[0].getsockname()[1]))
        started.set()
        await serving
        await replicas.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(60)
    server, replicas, port = made[0]
    try:
        yield Gateway(replicas, loop, port)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@dataclass
class Viewer:
    """Viewer of a world: it keeps what it received, each chunk with its bytes."""

    socket: ClientConnection
    messages: list[Message] = field(default_factory=list)
    chunks: list[tuple[Message, bytes]] = field(default_factory=list)

    def send(self, kind: str, **values: Any) -> None:
        """Send a message."""
        self.socket.send(json.dumps({"type": kind, **values}))

    def read(self, timeout_s: float = ANSWER_S) -> Message:
        """Read one message, and the binary message that belongs to it."""
        text = self.socket.recv(timeout_s)
        assert isinstance(text, str)
        message: Message = json.loads(text)
        self.messages.append(message)
        if message["type"] in ("video.chunk_metadata", "session.state"):
            data = self.socket.recv(timeout_s)
            assert isinstance(data, bytes) and len(data) == message["byte_length"]
            self.chunks.append((message, data))
        return message

    def until(self, kind: str, timeout_s: float = ANSWER_S, **values: Any) -> Message:
        """Read until a message of a kind comes."""
        while True:
            message = self.read(timeout_s)
            if message["type"] == kind and values.items() <= message.items():
                return message
            assert message["type"] != "error" or kind == "error", message

    def block(self, block: int) -> list[bytes]:
        """Read until a block is complete, and return its chunks."""
        while not any(message.get("generation_chunk_index", -1) > block for message, _ in self.chunks):
            message = self.read()
            assert message["type"] != "error", message
        return self.of_block(block)

    def of_block(self, block: int) -> list[bytes]:
        """Return the chunks of a block that have arrived."""
        return [data for message, data in self.chunks if message.get("generation_chunk_index") == block]

    def closed(self) -> int:
        """Read until the socket is closed, and return the code."""
        try:
            while True:
                self.read()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code


def wait_for_free_places(gateway: Gateway, model: str) -> None:
    """Wait until this gateway has no session of a model."""
    wait_until(
        lambda: not any(replica.sessions(model) for replica in gateway.replicas.all), f"no session of {model}"
    )
