"""When deaths are too many, how long to wait between them, and that nothing holds up or ends supervision."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from server_fixtures import wait_until

from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.server_processes import ServerResources, describe_exit
from slipway_serving.triton.control import ModelControl
from slipway_serving.triton.supervision import MAX_DEATHS, DeathCounter, ModelSupervisor, Supervisor


def test_waits_grow_in_a_row_of_deaths_until_they_are_too_many() -> None:
    deaths = DeathCounter(10, lambda: 0.0)
    waits = []
    while not deaths.is_limit_reached:
        deaths.record_death()
        waits.append(deaths.wait_s)
    assert waits == [0, 1, 2, 4, 8][:MAX_DEATHS]


def test_row_begins_anew_when_it_served_for_long_enough() -> None:
    now_s = 0.0
    deaths = DeathCounter(10, lambda: now_s)
    for served_s, count in ((9, 1), (9, 2), (10, 1), (9, 2)):
        deaths.record_start()
        now_s += served_s
        deaths.record_death()
        assert deaths.count == count
    now_s += 100  # not serving meanwhile
    deaths.record_death()
    assert deaths.count == 3


@pytest.mark.parametrize(
    ("code", "said"), [(-11, "SIGSEGV"), (-9, "SIGKILL"), (1, "exit code 1"), (-99, "signal 99")]
)
def test_end_of_a_process_is_told_in_words(code: int, said: str) -> None:
    assert describe_exit(code) == said


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of `tritonserver`, which lives until the test ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        yield living
        living.kill()


def resources(process: subprocess.Popen[bytes]) -> ServerResources:
    return ServerResources(f"slipway-{process.pid}-none-", "/nonexistent", process.pid, 1.0, os.devnull)


def quiet(event: str, **facts: Any) -> None:
    """Take an event."""


def test_supervisor_closes_when_its_server_answers_nobody(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Each question to it ends after 10 s, and there is one for each of 100 models."""
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        control = ModelControl(f"127.0.0.1:{hangs.getsockname()[1]}")
        names = [f"model_{number}" for number in range(100)]
        supervisor = Supervisor(
            lambda: process,
            lambda: ModelSupervisor(resources(process), tmp_path, names, control, quiet),
            lambda: False,
            quiet,
        )
        asked, _ = hangs.accept()  # the first question has come
        closing = threading.Thread(target=supervisor.close, daemon=True)
        closing.start()
        wait_until(lambda: not closing.is_alive(), "the end of the supervisor", 100)
        asked.close()


def test_server_fails_when_its_supervisor_ends(process: subprocess.Popen[bytes]) -> None:
    def defect() -> ModelSupervisor:
        raise ZeroDivisionError("a defect")

    told: list[dict[str, Any]] = []
    supervisor = Supervisor(
        lambda: process, defect, lambda: True, lambda event, **facts: told.append({"event": event, **facts})
    )
    wait_until(lambda: supervisor.failure is not None, "the failure", 60)
    text = "server: its supervision failed with ZeroDivisionError: a defect; "
    assert str(supervisor.failure).startswith(text)
    assert told[0]["event"] == "supervisor_failed"
    assert "in defect" in told[0]["traceback"]
    supervisor.close()


def test_server_fails_when_what_heals_a_model_ends(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Here by a defect of what takes the news; a model that nobody heals must not go unseen."""

    def defect(event: str, **facts: Any) -> None:
        if event == "model_died":
            raise ZeroDivisionError("a defect")

    class LacksOne(ModelControl):
        def count_processes(self, model: str, library_backends: Collection[str]) -> int:
            return 1

    supervisor = Supervisor(
        lambda: process,
        lambda: ModelSupervisor(resources(process), tmp_path, ["net"], LacksOne("127.0.0.1:1"), defect),
        lambda: True,
        defect,
    )
    wait_until(lambda: supervisor.failure is not None, "the failure", 60)
    assert "ZeroDivisionError: a defect" in str(supervisor.failure)
    supervisor.close()


class NotTriton(BaseHTTPRequestHandler):
    """Answers everything with a web page."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def do_POST(self) -> None:
        """Answer."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_control_tells_that_an_answer_is_not_tritons() -> None:
    with HTTPServer(("127.0.0.1", 0), NotTriton) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        control = ModelControl(f"127.0.0.1:{server.server_port}")
        for ask in (partial(control.count_processes, "net", ()), control.ready_models):
            with pytest.raises(NotReady, match="answers HTTP, but it is not Triton"):
                ask()
        server.shutdown()
