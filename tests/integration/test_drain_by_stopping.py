"""A server that stops its videos instead of finishing them: other servers continue them, to the bit."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gate import GATED, Gate, gated
from google.protobuf import text_format
from server_fixtures import any_port, wait_until
from tritonclient.grpc import model_config_pb2

from slipway_client import (
    AsyncClient,
    Client,
    Frames,
    Moved,
    Progress,
    RetryPolicy,
    Stopped,
    TextToVideoRequest,
)
from slipway_client.states import continued_request
from slipway_serving.runtime.shutdown import ShutdownStage
from slipway_serving.system.server_folder import runtime_folder_at
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

STEPS = 6
VIDEOS = 4
REQUEST = TextToVideoRequest("a lake", frames=5, height=32, width=32, steps=STEPS, output="frames")
PATIENT = RetryPolicy(budget_s=120)


def with_slots(repository: Path, target: Path, slots: int, **parameters: str) -> Path:
    """Copy a repository; it works on so many videos at a time, and by the first denoiser alone."""
    copy = Path(shutil.copytree(repository, target))
    file = copy / "wan_t2v" / "config.pbtxt"
    config = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    config.parameters["concurrent_requests"].string_value = str(slots)
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    file.write_text(text_format.MessageToString(config))
    facts = copy / "wan_t2v" / "1" / "pipeline.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"boundary_ratio": 1e-6}))
    return copy


@pytest.fixture(scope="module")
def wide(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_slots(repository, tmp_path_factory.mktemp("wide") / "models", VIDEOS)


@pytest.fixture(scope="module")
def other(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The second server, whose gate is open."""
    copy, gate = gated(wide, tmp_path_factory.mktemp("other"), spares=True)
    gate.open()
    with Server(any_port(copy)) as running:
        yield running


@pytest.fixture
def first(wide: Path, tmp_path: Path) -> Iterator[tuple[Server, Gate]]:
    """A server that stops its videos when it is stopped, and its gate."""
    copy, gate = gated(wide, tmp_path, spares=True)
    with Server(any_port(copy, exit_timeout_s=300, on_stop="checkpoint")) as running:
        yield running, gate


def stop_within_step(server: Server, gate: Gate, videos: int = 1) -> threading.Thread:
    """Begin to stop a server once so many videos wait at the gate within a step; return the thread that does.

    A video tells of a step before it looks whether it is to stop, so its progress alone does not say that it
    has begun the next step.
    """
    wait_until_within_step(server, gate, videos)
    stopping = threading.Thread(target=server.stop)
    folder = runtime_folder_at(server.config.metrics_port)
    assert folder is not None
    stopping.start()
    wait_until((folder / ShutdownStage.PIPELINES_STOP.value).exists, "the server tells its videos to stop")
    gate.open()
    return stopping


def wait_until_within_step(server: Server, gate: Gate, videos: int = 1) -> None:
    """Wait until a video's call is at the gate, and those of the others are behind it."""
    wait_until(lambda: gate.is_waited_at and pending(server) == videos - 1, "all videos are within a step")


def pending(server: Server) -> int:
    """Return how many calls wait for the denoiser, besides the one at the gate."""
    name = f'nv_inference_pending_request_count{{model="{GATED}"'
    lines = httpx.get(server.metrics_url).text.splitlines()
    return sum(round(float(line.split()[-1])) for line in lines if line.startswith(name))


def whole(server: Server, request: TextToVideoRequest) -> np.ndarray:
    with Client(server.grpc_url) as client:
        *_, result = client.generate(request)
    assert isinstance(result, Frames)
    return result.array


def test_four_videos_finish_on_the_second_server_when_the_first_is_stopped(
    first: tuple[Server, Gate], other: Server
) -> None:
    server, gate = first
    requests = [replace(REQUEST, seed=seed) for seed in range(VIDEOS)]
    done = [0] * VIDEOS

    def run(number: int) -> list[Any]:
        found: list[Any] = []
        with Client([server.grpc_url, other.grpc_url], retry=PATIENT) as client:
            for event in client.generate(requests[number]):
                found.append(event)
                if isinstance(event, Progress):
                    done[number] = event.step
        return found

    with ThreadPoolExecutor(VIDEOS) as pool:
        running = [pool.submit(run, number) for number in range(VIDEOS)]
        # One call waits at the gate and the others behind it, so each of the next calls is of another video.
        wait_until_within_step(server, gate, VIDEOS)
        gate.let(VIDEOS)
        wait_until(lambda: done == [1] * VIDEOS, "all videos have made their first step")
        stopping = stop_within_step(server, gate, VIDEOS)
        answers = [each.result() for each in running]
    stopping.join()
    for request, events in zip(requests, answers, strict=True):
        # Each video ended the step under way, and began no other.
        moved = [event for event in events if isinstance(event, Moved)]
        assert [(m.from_url, m.to_url, m.step, m.reason) for m in moved] == [
            (server.grpc_url, other.grpc_url, 2, "shutdown")
        ]
        assert [event.step for event in events if isinstance(event, Progress)] == [*range(1, STEPS + 1)]
        result = events[-1]
        assert isinstance(result, Frames)
        assert (result.moves, result.steps_repeated, result.same_engine) == (1, 0, True)
        assert np.array_equal(result.array, whole(other, request))


def test_video_moves_when_its_caller_is_asynchronous(first: tuple[Server, Gate], other: Server) -> None:
    server, gate = first

    async def run() -> list[Any]:
        found: list[Any] = []
        async with AsyncClient(f"{server.http_url},{other.http_url}", "http", retry=PATIENT) as client:
            async for event in client.generate(REQUEST):
                found.append(event)
                if isinstance(event, Progress) and event.step == 1:
                    stopping.append(await asyncio.to_thread(stop_within_step, server, gate))
        return found

    stopping: list[threading.Thread] = []
    gate.let(1)
    events = asyncio.run(run())
    stopping[0].join()
    assert [event.step for event in events if isinstance(event, Progress)] == [*range(1, STEPS + 1)]
    assert isinstance(events[-1], Frames)
    assert np.array_equal(events[-1].array, whole(other, REQUEST))


def test_caller_receives_the_state_when_it_knows_no_other_server(
    first: tuple[Server, Gate], other: Server
) -> None:
    server, gate = first
    gate.let(1)
    with Client(server.grpc_url) as client:
        events = []
        for event in client.generate(REQUEST):
            events.append(event)
            if isinstance(event, Progress) and event.step == 1:
                stopping = stop_within_step(server, gate)
    stopping.join()
    stopped = events[-1]
    assert isinstance(stopped, Stopped)
    assert (stopped.stop_reason, stopped.stopped_step, stopped.steps) == ("shutdown", 2, STEPS)
    assert stopped.state is not None
    request = continued_request(TextToVideoRequest, stopped.state, output="frames")
    assert np.array_equal(whole(other, request), whole(other, REQUEST))


def test_caller_stops_a_video_and_continues_it_later(first: tuple[Server, Gate]) -> None:
    server, gate = first
    gate.let(1)
    stop, events = threading.Event(), []
    folder = runtime_folder_at(server.config.metrics_port)
    assert folder is not None
    with Client(server.grpc_url) as client:
        for event in client.generate(REQUEST, stop=stop):
            events.append(event)
            if isinstance(event, Progress) and event.step == 1:
                wait_until_within_step(server, gate)
                stop.set()
                wait_until(lambda: any(folder.glob("*.stopped")), "the server knows of the stop")
                gate.let(1)
        stopped = events[-1]
        assert isinstance(stopped, Stopped)
        assert (stopped.stop_reason, stopped.stopped_step) == ("caller", 2)
        assert stopped.state is not None
        gate.open()
        request = continued_request(TextToVideoRequest, stopped.state, output="frames")
        rest = [event.step for event in client.generate(request) if isinstance(event, Progress)]
    assert rest == [3, 4, 5, 6]


def test_request_that_waits_for_a_slot_goes_elsewhere_when_the_server_is_stopped(
    repository: Path, tmp_path: Path, other: Server
) -> None:
    copy, gate = gated(with_slots(repository, tmp_path / "narrow", 1), tmp_path / "gated", spares=True)
    with Server(any_port(copy, exit_timeout_s=300, on_stop="checkpoint")) as server:
        begun, waits = threading.Event(), threading.Event()

        def run(request: TextToVideoRequest) -> list[Any]:
            found: list[Any] = []
            with Client([server.grpc_url, other.grpc_url], retry=PATIENT) as client:
                for event in client.generate(request):
                    found.append(event)
                    begun.set()
                    if isinstance(event, Progress) and event.phase == "waiting":
                        waits.set()
            return found

        with ThreadPoolExecutor(2) as pool:
            gate.let(1)
            running = pool.submit(run, REQUEST)
            begun.wait()
            waiting = pool.submit(run, replace(REQUEST, seed=9))
            waits.wait()
            stopping = stop_within_step(server, gate)
            answers = [running.result(), waiting.result()]
        stopping.join()
    for events in answers:
        steps = [event.step for event in events if isinstance(event, Progress) and event.phase is None]
        assert steps == [*range(1, STEPS + 1)]
        assert isinstance(events[-1], Frames)
