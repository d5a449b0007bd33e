"""A server that is stopped lets its pipelines end: their calls between models, too, until the last step."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from gate import gated
from server_fixtures import any_port, wait_until

from slipway_cli import root
from slipway_client import Client, Progress, RetryPolicy, TextToVideoRequest, Video
from slipway_serving.protocol.errors import NotReady, SlipwayError
from slipway_serving.runtime.shutdown import ShutdownStage
from slipway_serving.system.server_folder import runtime_folder_at
from slipway_serving.triton.drain import count_running_requests, wait_until_idle
from slipway_serving.triton.server import Server

STEPS = 100
QUICK = TextToVideoRequest(prompt="x", frames=5, height=32, width=32, steps=2)
LONG = TextToVideoRequest(prompt="x", frames=17, height=64, width=64, steps=STEPS)


def folder_of(server: Server) -> Path:
    folder = runtime_folder_at(server.config.metrics_port)
    assert folder is not None
    return folder


def refused(client: Client, url: str) -> str:
    """How a request is refused that comes while the server goes."""
    with pytest.raises(NotReady, match="wan_t2v: server is shutting down") as told:
        list(client.generate(QUICK))
    assert url not in str(told.value)  # its own words, over a connection that stands
    return str(told.value)


def counted(server: Server, code: str) -> float:
    """How many requests of the pipeline ended so."""
    name = f'slipway_requests_total{{code="{code}",model="wan_t2v"}} '
    lines = httpx.get(server.metrics_url).text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def drain(server: Server, timeout_s: float, *flags: str) -> subprocess.CompletedProcess[str]:
    metrics = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    command = [
        sys.executable,
        "-m",
        "slipway_cli.root",
        "drain",
        "--metrics",
        metrics,
        "--timeout-s",
        str(timeout_s),
        *flags,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_request_under_way_ends_whole_when_the_server_is_stopped(repository: Path, tmp_path: Path) -> None:
    copy, gate = gated(repository, tmp_path)
    with Server(any_port(copy, exit_timeout_s=600)) as server:
        assert root.run(["ready", "--url", server.http_url]) == 0
        assert drain(server, timeout_s=0).stdout == "idle\n"
        stopping = threading.Thread(target=server.stop)
        steps, videos = [], []
        once = RetryPolicy(budget_s=0)
        with (
            Client(server.grpc_url) as client,
            Client(server.grpc_url, retry=once) as late,
            Client(server.http_url, "http", retry=once) as kept_alive,
        ):
            assert late.model_metadata(LONG.model) == kept_alive.model_metadata(LONG.model)
            gate.let(1)
            for event in client.generate(LONG):
                if isinstance(event, Progress):
                    steps.append(event.step)
                elif isinstance(event, Video):
                    videos.append(event)
                if steps == [1]:  # The second waits at the gate.
                    wait_until(
                        lambda: count_running_requests(server.metrics_url) == 1,
                        "the metrics have the request",
                    )
                    too_short = drain(server, timeout_s=0)
                    stopping.start()
                    signal_file = folder_of(server) / ShutdownStage.PIPELINES_REFUSE.value
                    wait_until(signal_file.exists, "the server says that it goes")
                    assert refused(late, server.grpc_url) and refused(kept_alive, server.http_url)
                    gate.open()
        stopping.join()
        assert (steps, len(videos)) == ([*range(1, STEPS + 1)], 1)
        # The counter-check: it was under way, and known to be.
        assert too_short.returncode == 1 and "drain: 1 request(s) still run after" in too_short.stderr
        assert count_running_requests(server.metrics_url) is None


def test_drain_has_every_python_model_refuse_when_it_is_told_to(repository: Path) -> None:
    prompt = {"prompt": np.array([[b"a lake"]], dtype=np.object_)}
    tensor = triton.InferInput("prompt", [1, 1], "BYTES").set_data_from_numpy(prompt["prompt"])
    with (
        Server(any_port(repository)) as server,
        Client(server.http_url, "http", retry=RetryPolicy(budget_s=0)) as client,
        triton.InferenceServerClient(server.http_url.removeprefix("http://")) as kept_alive,
    ):
        assert client.infer("wan_t2v_tokenizer", prompt)
        assert kept_alive.infer("wan_t2v_tokenizer", [tensor])
        assert drain(server, 600).stdout == "idle\n"
        assert client.infer("wan_t2v_tokenizer", prompt)
        assert drain(server, 600, "--refuse").stdout == "idle\n"
        with pytest.raises(NotReady, match="wan_t2v_tokenizer: server is shutting down"):
            client.infer("wan_t2v_tokenizer", prompt)
        # docs/operate/upgrades.md has such clients try again on a new connection.
        with pytest.raises(triton.InferenceServerException) as told:
            kept_alive.infer("wan_t2v_tokenizer", [tensor])
        assert told.value.status() == "503"
        assert refused(client, server.http_url)
        # No failure of the server's, of which an alert would tell.
        wait_until(lambda: counted(server, "REFUSED") == 1, "the count")
        assert counted(server, "UNAVAILABLE") == 0


@pytest.mark.long
def test_pipelines_are_told_to_stop_when_a_server_that_checkpoints_is_stopped(
    repository: Path, tmp_path: Path
) -> None:
    copy, gate = gated(repository, tmp_path)
    config = replace(any_port(copy, exit_timeout_s=600), on_stop="checkpoint")
    with Server(config) as server, Client(server.grpc_url, retry=RetryPolicy(budget_s=0)) as client:
        gate.let(1)
        events = client.generate(LONG)
        next(events)  # The second step waits at the gate.
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        signal_file = folder_of(server) / ShutdownStage.PIPELINES_STOP.value
        wait_until(signal_file.exists, "the server tells its pipelines to stop")
        assert refused(client, server.grpc_url)
        assert server.is_alive()
        gate.open()
        with contextlib.suppress(SlipwayError):  # No other server is there to continue on.
            list(events)
        stopping.join()
    assert not signal_file.parent.exists()


@pytest.mark.long
def test_drain_tells_pipelines_to_stop_and_refuse_when_it_checkpoints(repository: Path) -> None:
    with (
        Server(any_port(repository)) as server,
        Client(server.grpc_url, retry=RetryPolicy(budget_s=0)) as client,
    ):
        folder = folder_of(server)
        assert drain(server, 600, "--refuse").stdout == "idle\n"
        assert not (folder / ShutdownStage.PIPELINES_STOP.value).exists()
        assert drain(server, 600, "--checkpoint").stdout == "idle\n"
        assert (folder / ShutdownStage.PIPELINES_STOP.value).exists()
        assert refused(client, server.grpc_url)


@pytest.mark.parametrize("flag", ["--refuse", "--checkpoint"])
def test_drain_refuses_to_have_a_server_refuse_that_is_not_here(flag: str) -> None:
    assert root.run(["drain", "--metrics", "localhost:1", flag]) == 1


@pytest.mark.long
def test_request_under_way_is_cut_when_the_exit_timeout_is_over(repository: Path, tmp_path: Path) -> None:
    copy, gate = gated(repository, tmp_path)
    with Server(any_port(copy, exit_timeout_s=1)) as server, Client(server.grpc_url) as client:
        gate.let(1)
        events = client.generate(LONG)
        next(events)
        threading.Thread(target=server.stop).start()
        with pytest.raises(SlipwayError):
            list(events)
        wait_until(lambda: not server.is_alive(), "the server's end", limit_s=120)


def test_drain_tells_so_when_there_are_no_metrics() -> None:
    assert wait_until_idle("http://localhost:1/metrics", limit_s=60) is None
