"""Priorities of videos: who is set aside for whom, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gate import Gate, gated
from server_fixtures import any_port, wait_until
from test_drain_by_stopping import with_slots

from slipway_client import AsyncClient, Client, Frames, Progress, RetryPolicy, TextToVideoRequest
from slipway_serving.runtime.slots.order import MOST_SET_ASIDE
from slipway_serving.runtime.slots.slots import Slots
from slipway_serving.system.server_folder import runtime_folder_at
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

STEPS = 6
REQUEST = TextToVideoRequest("a lake", frames=5, height=32, width=32, steps=STEPS, output="frames")
LOW, URGENT = (replace(REQUEST, priority=priority) for priority in ("low", "urgent"))
PATIENT = RetryPolicy(budget_s=600)


@pytest.fixture
def narrow(repository: Path, tmp_path: Path) -> Any:
    """A server with one slot, and its gate."""
    copy, gate = gated(with_slots(repository, tmp_path / "narrow", 1), tmp_path / "gated", spares=True)
    with Server(any_port(copy)) as running:
        yield running, gate


class Sent:
    """A request under way, in a thread of its own."""

    def __init__(self, server: Server, request: TextToVideoRequest, pool: ThreadPoolExecutor) -> None:
        self.events: list[Any] = []
        self._server, self._request = server, request
        self._future = pool.submit(self._run)

    def _run(self) -> None:
        with Client(self._server.grpc_url) as client:
            for event in client.generate(self._request):
                self.events.append(event)

    @property
    def steps(self) -> list[int]:
        return [event.step for event in self.events if isinstance(event, Progress) and event.phase is None]

    @property
    def phases(self) -> list[tuple[str, int]]:
        """Phases without steps, each once, with the number of finished steps."""
        found = [(e.phase, e.step) for e in self.events if isinstance(e, Progress) and e.phase is not None]
        return list(dict.fromkeys(found))

    def result(self) -> np.ndarray:
        self._future.result()
        assert isinstance(self.events[-1], Frames)
        return self.events[-1].array


def waiting(server: Server) -> int:
    folder = runtime_folder_at(server.config.metrics_port)
    assert folder is not None
    return Slots(folder / "slots" / "wan_t2v", 1).count_waiting()


def test_low_video_is_set_aside_within_one_step_when_an_urgent_one_comes(narrow: tuple[Server, Gate]) -> None:
    server, gate = narrow
    with ThreadPoolExecutor(2) as pool:
        gate.let(1)
        low = Sent(server, LOW, pool)
        wait_until(lambda: gate.calls == 2, "the low video is in its second step")
        urgent = Sent(server, URGENT, pool)
        wait_until(lambda: waiting(server) == 1, "the urgent video waits")
        gate.let(1)
        wait_until(lambda: gate.calls == 3, "the next step is at the gate")
        # It is the first step of the urgent video: the low one ended the step under way and no other.
        wait_until(lambda: low.phases == [("set aside", 2)], "the low video is set aside")
        assert low.steps == [1, 2]
        gate.let(STEPS)
        urgent_video = urgent.result()
        gate.open()
        low_video = low.result()
    assert urgent.steps == low.steps == [*range(1, STEPS + 1)]
    with Client(server.grpc_url) as client:
        *_, undisturbed = client.generate(REQUEST)
    assert np.array_equal(low_video, undisturbed.array)
    assert np.array_equal(urgent_video, undisturbed.array)


def test_video_is_not_set_aside_when_an_equal_one_comes(narrow: tuple[Server, Gate]) -> None:
    server, gate = narrow
    with ThreadPoolExecutor(2) as pool:
        gate.let(1)
        first = Sent(server, REQUEST, pool)
        wait_until(lambda: gate.calls == 2, "the first video is in its second step")
        second = Sent(server, REQUEST, pool)
        wait_until(lambda: waiting(server) == 1, "the second video waits")
        gate.open()
        assert np.array_equal(first.result(), second.result())
    assert first.phases == []
    assert second.phases == [("waiting", 0)]


def test_video_keeps_its_slot_when_it_was_set_aside_often_enough(narrow: tuple[Server, Gate]) -> None:
    server, gate = narrow
    with ThreadPoolExecutor(MOST_SET_ASIDE + 2) as pool:
        gate.let(1)
        low = Sent(server, LOW, pool)
        for times in range(MOST_SET_ASIDE + 1):
            # Each urgent video has had its steps, and the low one a step after each.
            wait_until(lambda n=times: gate.calls == 2 + n * (STEPS + 1), "the low video is in a step")
            urgent = Sent(server, URGENT, pool)
            wait_until(lambda: waiting(server) == 1, "an urgent video waits")
            gate.let(1)
            if times < MOST_SET_ASIDE:
                wait_until(lambda n=times: len(low.phases) == n + 1, "the low video is set aside")
                gate.let(STEPS)
                urgent.result()
        gate.open()
        low.result()
        urgent.result()
    assert low.steps == [*range(1, STEPS + 1)]
    assert low.phases == [("set aside", step) for step in range(2, 2 + MOST_SET_ASIDE)]
    assert urgent.phases == [("waiting", 0)]


def test_cancelled_video_leaves_nothing_when_it_is_set_aside(narrow: tuple[Server, Gate]) -> None:
    server, gate = narrow
    with ThreadPoolExecutor(2) as pool, Client(server.grpc_url) as client:
        gate.let(1)
        low = client.generate(LOW)
        next(low)
        urgent = Sent(server, URGENT, pool)
        wait_until(lambda: waiting(server) == 1, "the urgent video waits")
        gate.let(1)
        assert next(low).step == 2
        assert next(low).phase == "set aside"
        low.close()
        wait_until(lambda: waiting(server) == 0, "the low video has gone")
        gate.open()
        urgent.result()


@pytest.mark.parametrize("count", [45, 200])
def test_no_video_waits_for_ever_when_three_priorities_are_mixed(
    repository: Path, tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    models = with_slots(repository, tmp_path / "models", 2, priority_aging_s="20")
    config = models / "wan_t2v" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_queue_size: 16", "max_queue_size: 256"))
    order: list[str] = []

    async def run(url: str) -> None:
        async def one(number: int, client: AsyncClient) -> None:
            priority = ("urgent", "normal", "low")[number % 3]
            request = replace(REQUEST, steps=2, seed=number, priority=priority)
            results = [event async for event in client.generate(request) if isinstance(event, Frames)]
            assert len(results) == 1
            order.append(priority)

        async with AsyncClient(url, retry=PATIENT) as client:
            # The lower ones come first, so that the urgent ones have to overtake them.
            numbers = sorted(range(count), key=lambda number: -(number % 3))
            await asyncio.gather(*(one(number, client) for number in numbers))

    with Server(any_port(models)) as server:
        asyncio.run(run(server.grpc_url))
    with capsys.disabled():
        print("\n" + "".join(priority[0] for priority in order))
    assert len(order) == count
    ranks = {
        priority: statistics.mean(place for place, each in enumerate(order) if each == priority)
        for priority in ("urgent", "normal", "low")
    }
    assert ranks["urgent"] < ranks["normal"] < ranks["low"], ranks
