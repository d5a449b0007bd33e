"""Closed loop of HTTP clients: each sends its next request as soon as the last is answered."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slipway_serving.protocol.errors import Unrecoverable

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Target:
    """One request, ready to send.

    Attributes:
        port: Port of the server on this machine.
        path: Path of the URL.
        body: Body of the POST.
        headers: Headers beside those of HTTP itself.
        opening: Function that opens a session of its own for a client. It returns the first request, which is
            not counted, and the request that the client then sends in place of `body`.
    """

    port: int
    path: str
    body: bytes
    headers: Mapping[str, str]
    opening: Callable[[], tuple[Post, Post]] | None = None


@dataclass(frozen=True)
class Post:
    """Body of a POST and its headers."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Load:
    """Figures of a server under load.

    Attributes:
        per_s: Answered requests per second.
        latencies_ms: Latency of each answered request, in milliseconds.
    """

    per_s: float
    latencies_ms: tuple[float, ...]


def closed_loop(target: Target, clients: int, seconds: float) -> Load:
    """Send one request over and over from several clients at a time.

    Args:
        target: Request to send.
        clients: Number of threads, each with one persistent connection.
        seconds: Time after which no new request is sent, in seconds.

    Raises:
        Unrecoverable: A request was refused or lost; the message has the first answer.
    """
    barrier = threading.Barrier(clients + 1)
    latencies: list[float] = []
    failures: list[str] = []

    def client() -> None:
        # Avoid httpx: with 64 kB of body it takes 1.2 ms of a core per request, http.client takes 0.4 ms, and
        # the clients share the cores with the servers that they measure.
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=_TIMEOUT_S)

        def send(post: Post) -> None:
            connection.request("POST", target.path, post.body, dict(post.headers))
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != http.client.OK:
                failures.append(f"{answer.status} {content[:200]!r}")

        try:
            connection.connect()
            post = Post(target.body, target.headers)
            if target.opening is not None:
                first, post = target.opening()
                send(first)
            barrier.wait()
            until = time.perf_counter() + seconds
            while (started := time.perf_counter()) < until and not failures:
                send(post)
                latencies.append(1000 * (time.perf_counter() - started))
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
            barrier.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):  # The error of the client is raised below.
        barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise Unrecoverable(f"bench: {target.path} must answer every request, got {failures[0]}")
    return Load(len(latencies) / (time.perf_counter() - started), tuple(latencies))
