"""A server that is stopped lets its pipelines end: their calls between models, too, until the last step."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gate import gated
from server_fixtures import any_port, wait_until

from slipway_cli import root
from slipway_client import Client, Progress, TextToVideoRequest, Video
from slipway_serving.drain import requests_running, wait_until_idle
from slipway_serving.errors import SlipwayError
from slipway_serving.server import Server

STEPS = 100
LONG = TextToVideoRequest(prompt="x", frames=17, height=64, width=64, steps=STEPS)


def drain(server: Server, timeout_s: float) -> subprocess.CompletedProcess[str]:
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
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_request_under_way_ends_whole_when_the_server_is_stopped(repository: Path, tmp_path: Path) -> None:
    copy, gate = gated(repository, tmp_path)
    with Server(any_port(copy, exit_timeout_s=600)) as server:
        assert root.run(["ready", "--url", server.http_url]) == 0
        assert drain(server, timeout_s=0).stdout == "idle\n"
        stopping = threading.Thread(target=server.stop)
        steps, videos = [], []
        gate.let(1)
        with Client(server.grpc_url) as client:
            for event in client.generate(LONG):
                if isinstance(event, Progress):
                    steps.append(event.step)
                elif isinstance(event, Video):
                    videos.append(event)
                if steps == [1]:  # The second waits at the gate.
                    wait_until(
                        lambda: requests_running(server.metrics_url) == 1, "the metrics have the request"
                    )
                    refused = drain(server, timeout_s=0)
                    stopping.start()
                    gate.open()
        stopping.join()
        assert (steps, len(videos)) == ([*range(1, STEPS + 1)], 1)
        # The counter-check: it was under way, and known to be.
        assert refused.returncode == 1 and "got 1 request(s) under way" in refused.stderr
        assert requests_running(server.metrics_url) is None


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
