"""A gateway with a long queue: the time of single requests and its memory, without a crowd and with one.

Requests are sent at equal gaps, whether the one before is answered or not, and their time counts from the
moment at which each was due. Meanwhile one waiting job after another is deleted and another is created, so
that the places of the others in the queue change, which their watchers are told.

aiohttp sends the requests: the gateway shares the cores with this process, and httpx takes several times the
processor time for a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import numpy as np

from slipway_benchmarks.gateway.crowd import CrowdCounts
from slipway_benchmarks.gateway.gateway_process import RunningGateway
from slipway_serving.protocol.errors import Unrecoverable

_CROWD = "slipway_benchmarks.gateway.crowd"
_CREATED_AT_ONCE = 8
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Times:
    """Times of requests.

    Attributes:
        count: Number of requests.
        p50_ms: Median, in milliseconds.
        p95_ms: 95th percentile, in milliseconds.
        p99_ms: 99th percentile, in milliseconds.
        max_ms: Longest time, in milliseconds.
    """

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Return the times of at least one request, given in seconds."""
        ms = 1000 * np.asarray(seconds, np.float64)
        p50, p95, p99 = np.percentile(ms, (50, 95, 99)).tolist()
        return cls(len(ms), p50, p95, p99, float(ms.max()))


@dataclass(frozen=True)
class Look:
    """Gateway in one state.

    Attributes:
        get: Times of `GET /v1/videos/{id}`.
        delete: Times of the deletions meanwhile.
        create: Times of the creations meanwhile.
        memory_bytes: Anonymous and shared memory of the gateway's processes at the end.
        peak_bytes: Largest resident memory of the gateway's processes meanwhile.
        cores: Number of cores that the gateway kept busy.
        load_average: Load average of the machine over the last minute.
    """

    get: Times
    delete: Times
    create: Times
    memory_bytes: int
    peak_bytes: int
    cores: float
    load_average: float


@dataclass(frozen=True)
class QueueFound:
    """Gateway with a long queue.

    Attributes:
        empty_bytes: Anonymous and shared memory of the gateway with no job.
        create: Times of the creations that filled the queue.
        created_per_s: Number of jobs that were created per second.
        quiet: Gateway with the queue alone.
        crowded: Gateway with the queue, the watchers and the sockets.
        crowd: Messages and answers that came to the crowd.
    """

    empty_bytes: int
    create: Times
    created_per_s: float
    quiet: Look
    crowded: Look
    crowd: CrowdCounts


@dataclass(frozen=True)
class QueueOptions:
    """Size of the queue and of its crowd.

    Attributes:
        jobs: Number of waiting jobs.
        watchers: Number of streams of events, each of another job.
        sockets: Number of sockets that send sound in real time.
        gets_per_s: Number of `GET /v1/videos/{id}` per second.
        changes_per_s: Number of jobs per second that are deleted and replaced by others.
        seconds: Length of each look, in seconds.
    """

    jobs: int = 1000
    watchers: int = 200
    sockets: int = 50
    gets_per_s: float = 50.0
    changes_per_s: float = 1.0
    seconds: float = 60.0


async def measure_queue(
    gateway: RunningGateway, fields: Mapping[str, Any], options: QueueOptions, report: Any
) -> QueueFound:
    """Fill the queue, and look at the gateway without the crowd and with it.

    Args:
        gateway: Gateway that starts no job.
        fields: Fields of a job.
        options: Size of the queue and of its crowd.
        report: Callback that receives a line before each long step.
    """
    async with aiohttp.ClientSession(
        gateway.url,
        timeout=aiohttp.ClientTimeout(_TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0),  # a request must not wait for the one before
    ) as http:
        queue = _Queue(http, gateway, fields, options)
        empty_bytes = gateway.tree.own_bytes()
        report(f"queue: creating {options.jobs} jobs")
        begun_s = time.perf_counter()
        created = await queue.fill()
        per_s = options.jobs / (time.perf_counter() - begun_s)
        report(f"queue: {options.seconds:g} s without watchers and sockets")
        quiet = await queue.look()
        report(f"queue: {options.seconds:g} s with {options.watchers} watchers and {options.sockets} sockets")
        async with _crowd(gateway.url, queue.watched, options.sockets) as counts:
            crowded = await queue.look()
    return QueueFound(empty_bytes, created, per_s, quiet, crowded, counts[0])


class _Queue:
    """Queue of a gateway that starts no job."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        gateway: RunningGateway,
        fields: Mapping[str, Any],
        options: QueueOptions,
    ) -> None:
        self._http, self._gateway, self._fields, self._options = http, gateway, fields, options
        # No video of the pairs has such a seed: a request that repeats one would be answered with its job.
        self._seeds = itertools.count(10**9)
        self._ids: list[str] = []

    @property
    def watched(self) -> list[str]:
        """Jobs that have a watcher: the newest ones, so that every deletion changes their places."""
        return self._ids[-self._options.watchers :] if self._options.watchers else []

    async def fill(self) -> Times:
        """Create all jobs, a few at a time, and return the time of each creation."""
        limit = asyncio.Semaphore(_CREATED_AT_ONCE)

        async def create() -> float:
            async with limit:
                return await self._create()

        return Times.of(await asyncio.gather(*(create() for _ in range(self._options.jobs))))

    async def look(self) -> Look:
        """Send requests for the length of a look."""
        options, tree = self._options, self._gateway.tree
        tree.forget()
        begun_s, cpu_s = time.perf_counter(), tree.cpu_s()
        # The deleted jobs come from the front; the watched ones and those that are read stay.
        stay = self._ids[len(self._ids) // 2 :]
        places = np.random.default_rng(0)
        gets = asyncio.create_task(
            _at_equal_gaps(options, options.gets_per_s, lambda: self._get(stay[places.integers(len(stay))]))
        )
        deleted, created = [], []
        for number in range(max(round(options.seconds * options.changes_per_s), 1)):
            await asyncio.sleep(begun_s + number / options.changes_per_s - time.perf_counter())
            # The queue may be full, so one job leaves before another comes.
            deleted.append(await self._delete(self._ids.pop(0)))
            watched = len(self.watched)
            created.append(await self._create(len(self._ids) - watched))
        found = await gets
        busy = (tree.cpu_s() - cpu_s) / (time.perf_counter() - begun_s)
        return Look(
            Times.of(found),
            Times.of(deleted),
            Times.of(created),
            tree.own_bytes(),
            tree.peak_bytes,
            busy,
            os.getloadavg()[0],
        )

    async def _create(self, place: int | None = None) -> float:
        fields = {**self._fields, "seed": next(self._seeds)}
        begun_s = time.perf_counter()
        created = await self._answer("POST", "", fields)
        took_s = time.perf_counter() - begun_s
        self._ids.insert(len(self._ids) if place is None else place, created["id"])
        return took_s

    async def _delete(self, video_id: str) -> float:
        begun_s = time.perf_counter()
        await self._answer("DELETE", f"/{video_id}")
        return time.perf_counter() - begun_s

    async def _get(self, video_id: str) -> None:
        status = (await self._answer("GET", f"/{video_id}"))["status"]
        if status != "queued":
            raise Unrecoverable(f"bench: the jobs must wait, got one that is {status}")

    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async with self._http.request(method, f"/v1/videos{path}", json=body) as answer:
            if not answer.ok:
                text = (await answer.text())[:500]
                raise Unrecoverable(f"bench: the gateway must answer, got {answer.status}: {text}")
            return cast(dict[str, Any], await answer.json())


async def _at_equal_gaps(options: QueueOptions, per_s: float, send: Any) -> list[float]:
    """Send requests at equal gaps, and return the time from the moment at which each was due."""

    async def timed(due_s: float) -> float:
        await send()
        return time.perf_counter() - due_s

    begun_s, tasks = time.perf_counter(), []
    for number in range(max(round(options.seconds * per_s), 1)):
        due_s = begun_s + number / per_s
        await asyncio.sleep(due_s - time.perf_counter())
        tasks.append(asyncio.create_task(timed(due_s)))
    return list(await asyncio.gather(*tasks))


@contextlib.asynccontextmanager
async def _crowd(url: str, video_ids: Sequence[str], sockets: int) -> AsyncIterator[list[CrowdCounts]]:
    """Run the crowd until the block ends; the list has its counts afterwards."""
    job = json.dumps({"url": url, "video_ids": list(video_ids), "sockets": sockets})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", _CROWD, job, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    found: list[CrowdCounts] = []
    try:
        if not await process.stdout.readline():
            raise Unrecoverable("bench: every watcher and every socket must be served, got an error of one")
        yield found
        process.stdin.close()
        line = await process.stdout.readline()
        found.append(CrowdCounts(**json.loads(line)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
