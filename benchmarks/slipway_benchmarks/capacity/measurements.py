"""Load with known arrivals on the embedded server, and the service times that predict its queueing delay.

A :class:`Subject` is one kind of request. :func:`measure_service` sends it alone and several at a time, to
measure its service times and rates. :func:`send_openly` sends it at random times, whatever the server does.
Triton's trace tells when each request arrived, began and ended (:func:`read_trace`). :func:`service_of`
computes the service times from the trace; :func:`predict` lets the model serve the same arrivals with them
and computes the queueing delay independently.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway_client import AsyncClient, RetryPolicy, TextToVideoRequest, Turn
from slipway_loadtests.capacity.arrivals import Arrival, poisson
from slipway_loadtests.capacity.fleet import Fleet
from slipway_loadtests.capacity.plan import Service, rates_of
from slipway_loadtests.capacity.simulation import Floats, simulate
from slipway_serving.families.wakeword.request import SAMPLE_RATE_HZ
from slipway_serving.protocol.errors import Unrecoverable
from slipway_serving.triton.server import Server

Send = Callable[[AsyncClient, int], Awaitable[None]]
_DRAWS = 20
_MOST_SLOWING, _HALVINGS = 4.0, 20


@dataclass(frozen=True)
class Subject:
    """One kind of request to one served model.

    Attributes:
        model: Name of the served model.
        what: Description of the request.
        send: Function that sends it once and returns when the answer has arrived; each call gets a new
            number.
        together: Numbers of concurrent requests for the measurement of the rates, rising from 1; the last is
            the most that are ever at work at a time.
    """

    model: str
    what: str
    send: Send
    together: tuple[int, ...]


@dataclass(frozen=True)
class MeasurementWindow:
    """Time span of an open loop in Triton's clock, and the accuracy of its sender.

    Attributes:
        since_ns: Start on the machine's monotonic clock, in nanoseconds.
        until_ns: End on the same clock, in nanoseconds, after the last answer.
        lag_s: Largest delay of the sender, in seconds.
    """

    since_ns: int
    until_ns: int
    lag_s: float


@dataclass(frozen=True)
class Observed:
    """Requests of an open loop in Triton's trace, in the order in which they were queued.

    Attributes:
        at_s: Arrival times, in seconds from the first.
        queue_s: Queue times, in seconds.
        work_s: Compute times, in seconds.
    """

    at_s: tuple[float, ...]
    queue_s: tuple[float, ...]
    work_s: tuple[float, ...]


@dataclass(frozen=True)
class Delay:
    """Mean and 95th percentile of the queueing delay, in seconds."""

    mean_s: float
    p95_s: float


def compared_subjects() -> tuple[Subject, ...]:
    """Return requests that wait in a single Triton queue and are not batched with others."""
    # A full batch leaves no room for another request, so one instance serves one request at a time.
    recordings = _signals(8, 2000)
    video = TextToVideoRequest(prompt="A serene lake at sunset", frames=5, height=48, width=48, steps=4)

    async def send_recordings(client: AsyncClient, number: int) -> None:
        await client.infer("airimu", recordings)

    async def send_video(client: AsyncClient, number: int) -> None:
        async for _ in client.generate(video):
            pass

    return (
        Subject("airimu", "8 recordings of 10 s at 200 Hz, one instance", send_recordings, (1,)),
        Subject("wan_t2v", "tiny, 5 frames of 48x48, 4 steps, two instances", send_video, (1, 2)),
    )


def merged_subjects() -> tuple[Subject, ...]:
    """Return requests that Triton batches, to models that call others in sequence."""
    chunk = _signals(1, 100)
    audio = 0.1 * np.random.default_rng(0).standard_normal((1, SAMPLE_RATE_HZ))
    rate = np.array([[SAMPLE_RATE_HZ]], np.int64)
    clip: dict[str, NDArray[Any]] = {"audio": audio.astype(np.float32), "sample_rate": rate}

    async def send_chunk(client: AsyncClient, number: int) -> None:
        await client.infer("airimu_stream", chunk, turn=Turn(number, start=True, end=True))

    async def send_clip(client: AsyncClient, number: int) -> None:
        await client.infer("wakeword", clip)

    return (
        Subject("airimu_stream", "a chunk of 0.5 s at 200 Hz", send_chunk, (1, 2, 4, 8)),
        Subject("wakeword", "a clip of 1 s, AST of the public size, one word", send_clip, (1, 2, 4, 8)),
    )


def _signals(batch: int, frames: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)
    shape = (batch, frames, 3)
    return {name: random.standard_normal(shape).astype(np.float32) for name in ("acc", "gyro")}


def measure_service(server: Server, subject: Subject, requests: int) -> Service:
    """Measure a subject alone and several at a time, `requests` of each, on an otherwise idle server."""

    async def measured() -> Service:
        async with AsyncClient(server.grpc_url, retry=RetryPolicy(budget_s=0.0)) as client:
            sender = _Sender(client, subject)
            # This loop only warms the server up.
            await sender.closed_loop(subject.together[-1], requests)
            alone_s, _ = await sender.closed_loop(1, requests)
            per_s = [(await sender.closed_loop(count, requests))[1] for count in subject.together]
            return Service(tuple(alone_s), rates_of(subject.together, per_s))

    return asyncio.run(measured())


def send_openly(server: Server, subject: Subject, load: float, requests: int, seed: int) -> MeasurementWindow:
    """Send a subject at random times.

    Args:
        server: Running server with no other load.
        subject: Subject that waits in its own model's queue.
        load: Share of the throughput that is measured just before, below 1.
        requests: Number of requests in the open loop; half as many are sent before it.
        seed: Seed of the arrival times.
    """

    async def sent() -> MeasurementWindow:
        async with AsyncClient(server.grpc_url, retry=RetryPolicy(budget_s=0.0)) as client:
            sender = _Sender(client, subject)
            part = max(requests // 4, 8)
            # This loop only warms the server up.
            await sender.closed_loop(subject.together[-1], part)
            _, per_s = await sender.closed_loop(subject.together[-1], part)
            moments = [arrival.at_s for arrival in poisson(load * per_s, requests, (1.0,), seed)]
            since_ns = time.monotonic_ns()
            lags_s = await sender.open_loop(moments)
            return MeasurementWindow(since_ns, time.monotonic_ns(), max(lags_s))

    return asyncio.run(sent())


def trace_arguments(path: Path) -> tuple[str, ...]:
    """Return the arguments that make Triton trace every request to a file, complete once Triton has ended."""
    settings = ("mode=triton", f"triton,file={path}", "level=TIMESTAMPS", "rate=1", "count=-1")
    return tuple(f"--trace-config={setting}" for setting in settings)


def read_trace(path: Path, model: str, window: MeasurementWindow) -> Observed:
    """Return the traced requests of a model within a window.

    Raises:
        Unrecoverable: The trace contains no such request.
    """
    calls: set[int] = set()
    times: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for entry in json.loads(path.read_text(encoding="utf-8")):
        if entry.get("model_name") == model and "parent_id" not in entry:
            calls.add(entry["id"])
        times[entry["id"]] |= {stamp["name"]: stamp["ns"] for stamp in entry.get("timestamps", [])}
    found = sorted(
        (stamps["QUEUE_START"], stamps["COMPUTE_START"], stamps["COMPUTE_END"])
        for number, stamps in times.items()
        if number in calls and window.since_ns <= stamps["REQUEST_START"] <= window.until_ns
    )
    if not found:
        raise Unrecoverable(f"bench: {path} must hold requests to {model}, got none")
    came, begun, ended = (1e-9 * column for column in np.array(found, np.int64).T)
    return Observed(*(tuple(part.tolist()) for part in (came - came[0], begun - came, ended - begun)))


class _Sender:
    """Sends the requests of one subject, each with its own number."""

    def __init__(self, client: AsyncClient, subject: Subject) -> None:
        self._client, self._send = client, subject.send
        self._numbers = itertools.count(1)

    async def closed_loop(self, at_a_time: int, count: int) -> tuple[list[float], float]:
        """Send `count` requests, `at_a_time` concurrently; return latencies in s, and requests per second."""
        left = iter(range(count))

        async def one() -> list[float]:
            return [await self._once() for _ in left]

        started = time.perf_counter()
        latencies = await asyncio.gather(*(one() for _ in range(at_a_time)))
        return list(itertools.chain(*latencies)), count / (time.perf_counter() - started)

    async def open_loop(self, moments_s: Sequence[float]) -> list[float]:
        """Send at each time, answered or not; return the delay of each sending, in seconds."""
        started = time.perf_counter()

        async def at(moment_s: float) -> float:
            await asyncio.sleep(max(moment_s - (time.perf_counter() - started), 0.0))
            lag_s = time.perf_counter() - started - moment_s
            await self._once()
            return lag_s

        return await asyncio.gather(*(at(moment_s) for moment_s in moments_s))

    async def _once(self) -> float:
        started = time.perf_counter()
        await self._send(self._client, next(self._numbers))
        return time.perf_counter() - started


def service_of(observed: Observed, instances: int) -> Service:
    """Return the service times and rates of one replica, from requests that were often at work together.

    One number says how much they slow each other: each of k runs at the rate 1 / (1 + c (k - 1)). The
    function finds the c for which a request's service time does not depend, on average, on how many others
    ran beside it.

    Args:
        observed: Requests whose arrival times and compute times are used.
        instances: Number of requests that the server works on at a time.
    """
    begun = np.add(observed.at_s, observed.queue_s)
    ended = begun + observed.work_s
    moments = np.sort(np.concatenate([begun, ended]))
    together = np.searchsorted(np.sort(begun), moments, "right") - np.searchsorted(
        np.sort(ended), moments, "right"
    )
    spans_s = np.diff(moments)

    def over(value: Floats) -> Floats:
        """Integrate a value that is constant between two times over each request's work."""
        sums = np.concatenate([[0.0], np.cumsum(value[:-1] * spans_s)])
        return np.asarray(sums[np.searchsorted(moments, ended)] - sums[np.searchsorted(moments, begun)])

    def services(slowing: float) -> Floats:
        return over(1 / (1 + slowing * np.maximum(together - 1, 0)))

    company = over(np.maximum(together - 1.0, 0.0)) / observed.work_s
    low, high = 0.0, _MOST_SLOWING
    for _ in range(_HALVINGS):
        slowing = (low + high) / 2
        if np.cov(services(slowing), company)[0, 1] > 0:
            low = slowing
        else:
            high = slowing
    rates = tuple(1 / (1 + low * others) for others in range(instances))
    return Service(tuple(services(low).tolist()), rates)


def predict(service: Service, observed: Observed) -> Delay:
    """Predict the queueing delay of the same arrivals with the model.

    Each of several runs rotates the service times, so that they belong to other requests but keep their
    order. Slow and fast spells of the machine therefore keep their length.

    Args:
        service: Service times of those requests, in their order.
        observed: Requests whose arrival times are used.
    """
    fleet = Fleet(rates=service.rates)
    delays = []
    for offset in np.linspace(0, len(observed.at_s), _DRAWS, endpoint=False).astype(int):
        services = np.roll(service.alone_s, offset).tolist()
        pairs = zip(observed.at_s, services, strict=True)
        delays.append(delay_of(simulate(fleet, [Arrival(*pair) for pair in pairs]).waits_s()))
    return Delay(
        statistics.mean(delay.mean_s for delay in delays), statistics.mean(delay.p95_s for delay in delays)
    )


def delay_of(waits_s: Sequence[float] | Floats) -> Delay:
    """Return the mean and the 95th percentile of waits in seconds."""
    return Delay(float(np.mean(waits_s)), float(np.percentile(waits_s, 95)))
