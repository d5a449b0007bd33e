"""Videos whose server or process is killed: their clients continue them from the last checkpoint."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_fixtures import any_port, wait_until

from slipway_client import Client, Frames, Moved, Progress, RetryPolicy, TextToVideoRequest
from slipway_serving.system.server_processes import stubs
from slipway_serving.triton.server import Server

EVERY_STEPS = 2
REQUEST = TextToVideoRequest(
    "a lake", frames=17, height=64, width=64, steps=24, output="frames", checkpoint_every_steps=EVERY_STEPS
)
PATIENT = RetryPolicy(budget_s=300)


class Killer(threading.Thread):
    """Kill a process of the pipeline or the server, in turns, each time after some steps of all videos.

    Attributes:
        kills: Number of kills so far, by what was killed.
    """

    def __init__(self, server: Server, kills: int, steps: Counter[int]) -> None:
        super().__init__()
        self.kills: Counter[str] = Counter()
        self._server, self._wanted, self._steps = server, kills, steps
        self.ended = threading.Event()

    def run(self) -> None:
        choose = random.Random(0)
        for number in range(self._wanted):
            before = self._steps.total()
            while self._steps.total() < before + 8:
                if self.ended.wait(0.01):
                    return
            pid = self._server.pid
            assert pid is not None
            if number % 3 == 2:
                os.kill(pid, signal.SIGKILL)
                self.kills["tritonserver"] += 1
                continue
            pipelines = [stub for stub, model in stubs(pid).items() if model == "wan_t2v"]
            if pipelines:
                os.kill(choose.choice(pipelines), signal.SIGKILL)
                self.kills["stub"] += 1


@pytest.mark.long
@pytest.mark.parametrize(("videos", "kills"), [(6, 3), (50, 10)], ids=["few", "many"])
def test_no_video_is_lost_and_few_steps_are_repeated_when_processes_are_killed(
    repository: Path, videos: int, kills: int, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: Counter[int] = Counter()

    def run(number: int, url: str) -> tuple[Frames, list[Any]]:
        with Client(url, retry=PATIENT) as client:
            events = []
            for event in client.generate(replace(REQUEST, seed=number % 4)):
                events.append(event)
                steps[number] += isinstance(event, Progress) and event.phase is None
        assert isinstance(events[-1], Frames)
        return events[-1], events

    with Server(any_port(repository)) as server:
        with Client(server.grpc_url) as client:
            undisturbed = [
                list(client.generate(replace(REQUEST, seed=seed, checkpoint_every_steps=None)))[-1].array
                for seed in range(4)
            ]
        killer = Killer(server, kills, steps)
        killer.start()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda number: run(number, server.grpc_url), range(videos)))
        killer.ended.set()
        killer.join()
        wait_until(server.is_alive, "the server that was killed last is back", limit_s=300)
    moves = [[event for event in events if isinstance(event, Moved)] for _, events in answers]
    repeated = [result.steps_repeated for result, _ in answers]
    with capsys.disabled():
        print(
            f"\n{videos} videos, killed {dict(killer.kills)}: {sum(map(len, moves))} times continued, steps"
            f" repeated {sum(repeated)}"
        )
    assert sum(killer.kills.values()) == kills
    assert any(moves)
    for number, (result, events) in enumerate(answers):
        assert np.array_equal(result.array, undisturbed[number % 4]), number
        assert result.steps_repeated <= EVERY_STEPS * len(moves[number])
        done = [event.step for event in events if isinstance(event, Progress) and event.phase is None]
        assert len(done) == REQUEST.steps + result.steps_repeated
        assert [*dict.fromkeys(done)] == [*range(1, REQUEST.steps + 1)]
