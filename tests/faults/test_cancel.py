"""Cancellation and deadlines: the work stops within a step, its state is freed, the next request runs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil
import pytest
from gate import Gate, ended, let_it_notice, reports, settled
from server_fixtures import wait_until

from slipway_client import AsyncClient, Client, Progress, TextToVideoRequest, Video, cancellation
from slipway_client.grpc.transport import GrpcTransport
from slipway_client.http.transport import HttpTransport
from slipway_client.retry import Deadline
from slipway_serving.protocol.errors import DeadlineExceeded, InvalidRequest
from slipway_serving.protocol.requests import encode
from slipway_serving.system.server_folder import FOLDER_VARIABLE, runtime_folder_of
from slipway_serving.triton.control import ModelControl
from slipway_serving.triton.server import Server, ServerConfig

# The largest that the tiny models take: steps of some ten milliseconds.
LONG = TextToVideoRequest(
    prompt="a lake", frames=33, height=128, width=128, steps=50, guidance_scale_2=3.0, seed=1
)
# On a busy machine a caller may hear of the first step late, so the work goes on for as long as it may.
LONGEST = replace(LONG, steps=100)
QUICK = TextToVideoRequest(prompt="a lake", frames=5, height=32, width=32, steps=2)
# As in a terminal: what a shell starts in the background is started with SIGINT ignored.
INTERRUPTIBLE = (
    "import signal; from slipway_cli.root import main;"
    " signal.signal(signal.SIGINT, signal.default_int_handler); main()"
)


Protocol = Literal["grpc", "http"]
PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")


def url_of(server: Server, protocol: Protocol) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


def wait_for(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def ends(server: Server, code: str) -> list[int]:
    """Steps done by each request that ended with an error of this code."""
    return [
        report.get("steps_done", 0)
        for report in reports(server)
        if report["event"] != "traceback" and report.get("error", "").startswith(f"[{code}]")
    ]


def private_folder(server: Server) -> str:
    return psutil.Process(server.pid).environ()[FOLDER_VARIABLE]


def assert_next_request_succeeds(server: Server) -> None:
    with Client(server.grpc_url) as client:
        *_, result = client.generate(QUICK)
    assert isinstance(result, Video)


def assert_next_request_passes(server: Server, gate: Gate) -> None:
    gate.open()
    assert_next_request_succeeds(server)
    gate.let(0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_loop_stops_within_one_step_when_cancelled_at_step_3_of_50(
    gated_server: tuple[Server, Gate], protocol: Protocol
) -> None:
    server, gate = gated_server
    before = settled(server)
    gate.let(3)
    with Client(url_of(server, protocol), protocol) as client:
        events = client.generate(LONG)
        for event in events:
            assert isinstance(event, Progress)
            if event.step == 3:
                events.close()
                break
        report = let_it_notice(server, gate, before)
    # Step 4 waited at the gate when the cancellation was sent; one more may begin while it travels.
    assert (report["code"], report["steps_done"] in (3, 4, 5)) == ("CANCELLED", True)
    assert_next_request_passes(server, gate)


def begun(server: Server) -> int:
    return sum(report["event"] == "started" for report in reports(server))


def waiting(server: Server) -> bool:
    text = httpx.get(server.metrics_url, timeout=60).text
    return 'nv_inference_pending_request_count{model="wan_t2v",version="1"} 1\n' in text


@pytest.mark.parametrize(("kind", "begins"), [(GrpcTransport, False), (HttpTransport, True)])
def test_request_that_is_left_in_the_queue_is_not_begun_or_ends_early(
    gated_server: tuple[Server, Gate], kind: type[GrpcTransport | HttpTransport], begins: bool
) -> None:
    server, gate = gated_server
    transport = kind(server.grpc_url if kind is GrpcTransport else server.http_url, 10.0)
    # Nothing tells when the server has heard that a caller has gone.
    for heard_s in (1.0, 4.0, 16.0):
        before = settled(server)
        with ThreadPoolExecutor(3) as pool, Client(server.grpc_url) as client:
            started = begun(server)
            at_work = [pool.submit(list, client.generate(QUICK)) for _ in range(2)]
            wait_for(lambda started=started: begun(server) == started + 2, "both instances at work")
            left = pool.submit(list, transport.stream("wan_t2v", encode(LONG), Deadline(5.0, "wan_t2v")))
            wait_for(lambda: waiting(server), "one that waits")
            with pytest.raises(DeadlineExceeded):
                left.result(300)
            time.sleep(heard_s)
            gate.open()
            assert all(isinstance(work.result(300)[-1], Video) for work in at_work)
        assert_next_request_passes(server, gate)  # it came later: nothing waits any more
        settled(server)
        came = [each for each in ended(server) if each["request_id"] not in before]
        done = [each for each in came if each["event"] != "finished"]
        if len(done) <= begins:
            break
    assert len(done) <= begins
    # Over HTTP, Triton sees by the first answer that nobody takes it, and says so some milliseconds later.
    assert all(each["code"] == "CANCELLED" and each["steps_done"] < LONG.steps for each in done), done
    transport.close()


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that are cut, which by time alone none is."""
    made: list[str] = []

    def told(kind: type[Any]) -> Callable[..., Any]:
        def make(end: Any, cut: Callable[[], object], limit_s: float | None) -> Any:
            return kind(end, lambda: (made.append(kind.__name__), cut()), limit_s)

        return make

    for name in ("CANCEL_GRACE_S", "DEADLINE_GRACE_S", "FIND_REQUEST_S"):
        monkeypatch.setattr(cancellation, name, 300.0)
    for kind in (cancellation.CallCancellation, cancellation.AsyncCallCancellation):
        monkeypatch.setattr(cancellation, kind.__name__, told(kind))
    return made


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_stream_that_is_left_ends_by_a_message_and_is_not_cut(
    server: Server, cuts: list[str], protocol: Protocol
) -> None:
    before = len(ends(server, "CANCELLED"))
    with Client(url_of(server, protocol), protocol) as client:
        events = client.generate(LONGEST)
        next(events)
        events.close()
    wait_for(lambda: len(ends(server, "CANCELLED")) == before + 1, "cancelled in the log")
    assert ends(server, "CANCELLED")[before] < LONGEST.steps
    assert cuts == []
    assert_next_request_succeeds(server)
    marks = runtime_folder_of(server.pid or 0, private_folder(server))
    wait_for(lambda: not list(marks.glob("slipway-*")), "no mark of a request is left")


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_task_that_is_cancelled_ends_its_work_by_a_message(
    server: Server, cuts: list[str], protocol: Protocol
) -> None:
    before, begun = len(ends(server, "CANCELLED")), asyncio.Event()

    async def work(client: AsyncClient) -> None:
        async for _ in client.generate(LONGEST):
            begun.set()

    async with AsyncClient(url_of(server, protocol), protocol) as client:
        task = asyncio.create_task(work(client))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    wait_for(lambda: len(ends(server, "CANCELLED")) == before + 1, "cancelled in the log")
    assert ends(server, "CANCELLED")[before] < LONGEST.steps
    assert cuts == []


@pytest.mark.parametrize("kind", [GrpcTransport, HttpTransport])
@pytest.mark.parametrize("known", [True, False])
def test_time_limit_that_the_server_does_not_know_ends_the_work(
    server: Server,
    cuts: list[str],
    known: bool,
    kind: type[GrpcTransport | HttpTransport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not known:
        monkeypatch.setattr(cancellation.CancelRequest, "model", "nothing_of_that_name")
    transport = kind(server.grpc_url if kind is GrpcTransport else server.http_url, 10.0)
    long = encode(TextToVideoRequest(**(LONG.__dict__ | {"steps": 100})))
    before = len(ends(server, "CANCELLED"))
    with pytest.raises(DeadlineExceeded, match=r"wan_t2v: the call did not finish within 0\.3 s"):
        list(transport.stream("wan_t2v", long, Deadline(0.3, "wan_t2v")))
    wait_for(lambda: len(ends(server, "CANCELLED")) == before + 1, "cancelled in the log")
    transport.close()
    assert cuts == ([] if known else ["CallCancellation"])
    assert_next_request_succeeds(server)


def test_loop_stops_when_the_client_process_is_killed(gated_server: tuple[Server, Gate]) -> None:
    server, gate = gated_server
    before = settled(server)
    gate.let(1)
    code = (
        "from slipway_client import Client, TextToVideoRequest\n"
        f"for event in Client({server.grpc_url!r}).generate({LONG!r}): print(event.step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()
    report = let_it_notice(server, gate, before)
    assert report["code"] == "CANCELLED"
    assert report["steps_done"] < 50
    assert_next_request_passes(server, gate)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_of_generate_cancels_on_the_server_and_leaves_no_file(
    gated_server: tuple[Server, Gate], tmp_path: Path, times: int
) -> None:
    server, gate = gated_server
    before, calls = settled(server), gate.calls
    command = [
        sys.executable, "-c", INTERRUPTIBLE, "generate", "wan_t2v", "a lake",
        "--output", str(tmp_path / "v.mp4"), "--frames", "33", "--size", "128x128", "--steps", "100",
        "--url", server.grpc_url,
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: gate.calls > calls, "the first step")
    assert process.poll() is None, process.stderr.read() if process.stderr else ""
    for _ in range(times):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.05)  # Two signals that wait together are one.
    # The second may come when Python has put the signal's own effect back, as it does when it ends.
    assert process.wait(timeout=300) in (130, *[-signal.SIGINT] * (times - 1))
    assert let_it_notice(server, gate, before)["code"] == "CANCELLED"
    assert list(tmp_path.iterdir()) == []
    assert_next_request_passes(server, gate)


def test_deadline_shorter_than_the_work_ends_it_with_its_own_error(server: Server) -> None:
    before = len(ends(server, "DEADLINE_EXCEEDED"))
    with Client(server.grpc_url) as client, pytest.raises(DeadlineExceeded, match="0.2"):
        list(client.generate(TextToVideoRequest(**(LONG.__dict__ | {"steps": 100, "timeout_s": 0.2}))))
    wait_for(lambda: len(ends(server, "DEADLINE_EXCEEDED")) == before + 1, "deadline in the log")
    assert ends(server, "DEADLINE_EXCEEDED")[-1] < 100
    assert_next_request_succeeds(server)


def test_refused_request_is_not_retried(server: Server) -> None:
    before = len(ends(server, "INVALID_ARGUMENT"))
    bad = TextToVideoRequest(**(QUICK.__dict__ | {"frames": 1001}))
    with Client(server.grpc_url) as client, pytest.raises(InvalidRequest, match="frames must be 1 to 33"):
        list(client.generate(bad))
    wait_for(lambda: len(ends(server, "INVALID_ARGUMENT")) > before, "refused in the log")
    assert_next_request_succeeds(server)
    assert len(ends(server, "INVALID_ARGUMENT")) == before + 1


@pytest.mark.long
def test_server_unloads_every_model_after_refusals_and_deadlines(repository: Path, tmp_path: Path) -> None:
    """A request that Triton still holds keeps its model loaded."""
    log = tmp_path / "triton.log"
    config = ServerConfig(
        repository, http_port=0, grpc_port=0, metrics_port=0, log_path=log, model_control="explicit"
    )
    bad = TextToVideoRequest(**(QUICK.__dict__ | {"frames": 1001}))
    short = TextToVideoRequest(**(LONG.__dict__ | {"timeout_s": 0.1}))
    with Server(config) as server, Client(server.grpc_url) as client:
        for _ in range(12):
            for request, error in ((bad, InvalidRequest), (short, DeadlineExceeded)):
                with pytest.raises(error):
                    list(client.generate(request))
        ModelControl(server.http_url, server.control_token).unload("wan_t2v")
        wait_until(lambda: "successfully unloaded 'wan_t2v' version 1" in log.read_text(), "its end", 120)
