"""A crowd in a process of its own: watchers of jobs' events, and sockets that send sound.

The main process measures single requests meanwhile, and must not share its interpreter with the crowd. The
crowd says "ready" when every watcher has its first event and every socket its session. When its standard
input ends, it counts what came and prints the counts as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import numpy as np
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PIECE_S = 0.5
_RATE_HZ = 16_000
_READY = "ready"
# Close code of a socket that may be opened again later (IANA's registry).
_TRY_AGAIN, _AGAIN_S = 1013, 1.0


@dataclass(frozen=True)
class CrowdCounts:
    """What came while the crowd was there.

    Attributes:
        events: Number of events that all watchers received.
        watchers: Number of watchers whose stream was open at the end.
        messages: Number of messages that all sockets received.
        sockets: Number of sockets that were open at the end.
        refusals: Number of sockets that were closed since the server was too busy, and opened again.
        late_s: Largest time by which a piece of sound was sent too late, in seconds.
    """

    events: int
    watchers: int
    messages: int
    sockets: int
    refusals: int
    late_s: float


class _Crowd:
    """Watchers and sockets of one event loop."""

    def __init__(self, url: str, video_ids: Sequence[str], sockets: int) -> None:
        self._url, self._ids, self._sockets = url, video_ids, sockets
        self._counts: Counter[str] = Counter()
        self._begun: asyncio.Queue[None] = asyncio.Queue()
        self._late_s = 0.0
        self._open = 0

    async def run(self) -> CrowdCounts:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self._url, timeout=None, limits=limits, trust_env=False
        ) as http:
            work = [self._watch(http, each) for each in self._ids]
            work += [self._listen(number) for number in range(self._sockets)]
            tasks = [asyncio.create_task(each) for each in work]
            try:
                await self._until_all_begin(tasks)
                print(_READY, flush=True)
                self._counts.clear()
                await asyncio.to_thread(sys.stdin.read)
                watching = tasks[: len(self._ids)]
                return CrowdCounts(
                    self._counts["event"],
                    sum(not task.done() for task in watching),
                    self._counts["message"],
                    self._open,
                    self._counts["refusal"],
                    self._late_s,
                )
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_all_begin(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the first word to every task; the error of a task that ends before is raised."""
        begun = asyncio.ensure_future(self._all_begin(len(tasks)))
        await asyncio.wait({begun, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                begun.cancel()
                await task
        await begun

    async def _all_begin(self, number: int) -> None:
        for _ in range(number):
            await self._begun.get()

    async def _watch(self, http: httpx.AsyncClient, video_id: str) -> None:
        first = True
        async with http.stream("GET", f"/v1/videos/{video_id}/events") as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                self._counts["event"] += 1
                if first:
                    first = False
                    self._begun.put_nowait(None)

    async def _listen(self, number: int) -> None:
        """Keep a socket open; one that a busy server refuses is opened again after a moment."""
        begun = False
        while True:
            async with self._socket() as socket:
                with contextlib.suppress(ConnectionClosed):
                    await self._until_ready(socket)
                    if not begun:
                        begun = True
                        self._begun.put_nowait(None)
                    self._open += 1
                    try:
                        await self._talk(socket, number)
                    finally:
                        self._open -= 1
            if socket.close_code != _TRY_AGAIN:
                raise ConnectionError(f"a socket was closed with {socket.close_code} {socket.close_reason}")
            self._counts["refusal"] += 1
            await asyncio.sleep(_AGAIN_S)

    def _socket(self) -> connect:
        url = self._url.replace("http", "ws", 1) + "/v1/listen"
        return connect(url, proxy=None, open_timeout=60, max_size=None)

    async def _until_ready(self, socket: ClientConnection) -> None:
        await socket.send(json.dumps({"type": "listen.start", "sample_rate": _RATE_HZ}))
        while json.loads(await socket.recv())["type"] != "listen.ready":
            pass

    async def _talk(self, socket: ClientConnection, number: int) -> None:
        """Send sound and count the answers until the socket ends."""
        sending = asyncio.create_task(self._send(socket, number))
        try:
            async for _ in socket:
                self._counts["message"] += 1
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, socket: ClientConnection, number: int) -> None:
        """Send sound in real time, each socket at another moment of the half second."""
        loop = asyncio.get_running_loop()
        random = np.random.default_rng(number)
        pcm = random.normal(0, 1000, round(PIECE_S * _RATE_HZ)).astype(np.int16).tobytes()
        due_s = loop.time() + PIECE_S * number / max(self._sockets, 1)
        while True:
            await asyncio.sleep(due_s - loop.time())
            self._late_s = max(self._late_s, loop.time() - due_s)
            await socket.send(pcm)
            due_s += PIECE_S


def _main(job: Mapping[str, Any]) -> None:
    counts = uvloop.run(_Crowd(job["url"], job["video_ids"], job["sockets"]).run())
    print(json.dumps(asdict(counts)), flush=True)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
