"""What dies is started anew, within bounds: a model's process, alone, and tritonserver itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from healing import (
    FRAGILE,
    GRAPH,
    ONES,
    TENSORS,
    Got,
    call,
    events,
    healed,
    pid_of,
    pids_of,
    server_id_of,
    stream,
    write_models,
)
from server_fixtures import (
    affine,
    any_port,
    infer,
    metric,
    wait_until,
    write_model,
)

from slipway_cli.root import run
from slipway_serving.protocol.errors import InvalidRequest, NotReady, SessionLost, SlipwayError
from slipway_serving.system.server_processes import process_ids, shared_memory_regions
from slipway_serving.triton import supervision
from slipway_serving.triton.server import Server
from slipway_serving.triton.supervision import MAX_DEATHS

DIES_ONCE = """
import os
import signal
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        with open({starts!r}, "a+") as starts:
            starts.write("+")
            starts.seek(0)
            first = starts.read() == "+"
        if first:
            {death}

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]) for x in inputs]
"""
KILLS = [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV]


@pytest.fixture(scope="module")
def flag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that, where it is, makes the model `fragile` die at its start."""
    return tmp_path_factory.mktemp("flag") / "die"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, flag: Path) -> Path:
    folder = tmp_path_factory.mktemp("dying") / "models"
    write_models(folder, flag)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    """A server whose models may die as soon as they like: only starts that fail count as deaths in a row."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervision, "MODEL_STEADY_S", 0.0)
        patch.setattr(supervision, "REPLACED_IDLE_S", 1.0)
        with Server(any_port(repository)) as running:
            yield running


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_url) as connected:
        yield connected


@pytest.mark.parametrize("model", ["failing", "failing_together"])
def test_failed_request_leaves_nothing_in_memory(client: triton.InferenceServerClient, model: str) -> None:
    """What is left keeps shared memory; at the interpreter's end it outlives that, and the process dies."""
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="x must not be 0"):
            call(client, model, 0)
    assert call(client, model, 1) == 0


@pytest.mark.parametrize("number", KILLS)
def test_model_serves_again_when_its_process_dies_in_a_request(
    server: Server, client: triton.InferenceServerClient, number: signal.Signals
) -> None:
    tritonserver, others = server.pid, pid_of(server, "other")
    call(client, "other", 1, sequence_id=7, sequence_start=True)
    with (
        healed(server, "sum"),
        pytest.raises(NotReady, match=r"sum_0_0: the model's process ended before it answered; try again"),
    ):
        call(client, "sum", -number)
    assert call(client, "sum", 5) == 5
    # What is built on it, too; and nobody else noticed.
    assert call(client, "ensemble", 6) == 6
    assert stream(server, 7) == [0, 7]
    assert call(client, "other", 2, sequence_id=7) == 3
    assert (server.pid, pid_of(server, "other")) == (tritonserver, others)
    restarted = events(server)[-1]
    assert metric(server, "slipway_model_restarts", "sum") == restarted["restarts"]
    assert (metric(server, "slipway_model_restarts", "other"), restarted["model"]) == (0, "sum")


@pytest.mark.python_graphs
def test_model_serves_again_when_its_idle_process_is_killed(
    server: Server, client: triton.InferenceServerClient
) -> None:
    for _ in range(2):  # Nothing of its files has changed since it was started anew.
        with healed(server, "graph"):
            os.kill(pid_of(server, "graph"), signal.SIGKILL)
        np.testing.assert_array_equal(infer(client, "graph", x=ONES)["y"], 2 * ONES + 1)
    assert metric(server, "slipway_model_restarts", "graph") == 2


@pytest.mark.parametrize("model", ["sum", pytest.param("graph", marks=pytest.mark.python_graphs)])
def test_process_started_anew_holds_none_of_the_servers_connections(server: Server, model: str) -> None:
    with httpx.Client(base_url=f"http://{server.http_url}", trust_env=False) as http:
        http.get("/v2/health/live").raise_for_status()  # and the connection stays
        with healed(server, model):
            os.kill(pid_of(server, model), signal.SIGKILL)
        held = [str(each.readlink()) for each in Path(f"/proc/{pid_of(server, model)}/fd").iterdir()]
        assert http.get("/v2/health/live").is_success
    assert len(held) > 3
    assert [each for each in held if each.startswith("socket:")] == []


def test_session_of_a_dead_process_is_lost_and_not_unknown(
    server: Server, client: triton.InferenceServerClient
) -> None:
    call(client, "sum", 1, sequence_id=1, sequence_start=True)
    call(client, "sum", 1, sequence_id=2, sequence_start=True)
    call(client, "sum", 1, sequence_id=2, sequence_end=True)
    with healed(server, "sum"):
        os.kill(pid_of(server, "sum"), signal.SIGKILL)
    wait_until(lambda: metric(server, "slipway_sessions_open", "sum") == 0, "the gauge")
    with pytest.raises(SessionLost, match=r"sum: session 1 was lost when the model's process ended"):
        call(client, "sum", 1, sequence_id=1)
    for unknown in (2, 3):  # One that had ended, and one that never was.
        with pytest.raises(InvalidRequest, match="is not open"):
            call(client, "sum", 1, sequence_id=unknown)
    assert call(client, "sum", 4, sequence_id=1, sequence_start=True) == 4
    assert call(client, "sum", 4, sequence_id=1, sequence_end=True) == 8


def test_request_that_a_process_died_in_is_not_counted_as_running(server: Server) -> None:
    with healed(server, "pipeline"):
        first, error = stream(server, -100 - signal.SIGKILL)
    assert first == 0 and isinstance(error, NotReady)
    assert metric(server, "slipway_requests_running", "pipeline") == 0
    assert stream(server, 3) == [0, 3]


def test_pipeline_tells_that_the_model_it_asks_died_and_goes_on(server: Server) -> None:
    with healed(server, "sum"):
        first, error = stream(server, -signal.SIGKILL)
    assert first == 0 and isinstance(error, NotReady)
    assert stream(server, 3) == [0, 3]
    assert metric(server, "slipway_requests_running", "pipeline") == 0


def test_all_instances_are_there_again_when_one_of_two_is_killed(
    server: Server, client: triton.InferenceServerClient
) -> None:
    with healed(server, "fragile"):
        os.kill(pid_of(server, "fragile"), signal.SIGKILL)
    wait_until(lambda: len(pids_of(server, "fragile")) == 2, "two processes")
    assert [call(client, "fragile", x) for x in (1, 2, 3, 4)] == [1, 2, 3, 4]


def test_processes_end_that_worked_beside_one_that_died_once_a_model_was_loaded_anew(
    server: Server, flag: Path
) -> None:
    """Triton keeps the model of a request that died with its process, and so the processes of that model."""
    gate, before = flag.with_name("gate"), pids_of(server, "gated")
    parts: list[Got] = [[], []]
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(stream, server, x, "gated", into) for x, into in enumerate(parts, start=1)]
        # A request is counted before its first answer, which a process that dies in between never sends.
        wait_until(lambda: all(parts), "the first answers of both")
        with healed(server, "gated"):
            os.kill(min(before), signal.SIGKILL)
        # The old one, which works on, is not taken for the next one that dies.
        with healed(server, "gated"):
            os.kill(max(pids_of(server, "gated") - before), signal.SIGKILL)
        gate.touch()
        answers = {each[0]: each[1] for each in (future.result() for future in asked)}
    # What the other one worked on ends whole.
    assert isinstance(answers[min(before)], NotReady)
    assert answers[max(before)] in (1, 2)
    wait_until(lambda: len(pids_of(server, "gated")) == 2, "the end of the old processes")
    assert not before & pids_of(server, "gated")
    assert stream(server, 3, "gated")[1] == 3
    assert metric(server, "slipway_requests_running", "gated") == 0


def test_server_lives_when_a_process_at_work_is_stopped_and_goes_on(server: Server, flag: Path) -> None:
    """Triton 2.51 gives such a process up after a second, and dies when it answers after all."""
    flag.with_name("gate").unlink(missing_ok=True)
    tritonserver, stopped, got = server.pid, pids_of(server, "gated"), list[float | SlipwayError]()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stream, server, 1, "gated", got)
        wait_until(lambda: bool(got), "the first answer")
        with healed(server, "gated"):
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: not stopped & pids_of(server, "gated"), "the end of the stopped processes")
        flag.with_name("gate").touch()
        _, error = asked.result()
    assert isinstance(error, NotReady)
    killed = [told["pid"] for told in events(server) if told["event"] == "stopped_process_killed"]
    assert set(killed) == stopped
    assert stream(server, 3, "gated")[1] == 3
    assert server.pid == tritonserver


@pytest.mark.python_graphs
def test_model_serves_again_when_its_folder_was_missing_while_its_process_died(
    server: Server, client: triton.InferenceServerClient, repository: Path
) -> None:
    with healed(server, "graph"):
        dead, told = pid_of(server, "graph"), len(events(server))
        (repository / "graph").rename(repository.with_name("away"))
        try:
            os.kill(dead, signal.SIGKILL)
            wait_until(lambda: len(events(server)) > told, "the notice of the death")
            assert events(server)[told]["event"] == "model_died"
        finally:
            repository.with_name("away").rename(repository / "graph")
    np.testing.assert_array_equal(infer(client, "graph", x=ONES)["y"], 2 * ONES + 1)


@pytest.mark.parametrize("death", ["os._exit(3)", "os.kill(os.getppid(), signal.SIGABRT)"])
def test_server_begins_its_start_again_when_a_process_dies_while_models_are_loaded(
    death: str, tmp_path: Path
) -> None:
    """A model's process, or Triton; both happen on a machine so busy that a process does not run for 1 s."""
    starts = tmp_path / "starts"
    version = write_model(tmp_path / "models", "once", None, TENSORS, "python")
    (version / "model.py").write_text(DIES_ONCE.format(starts=str(starts), death=death))
    told: list[str] = []
    config = any_port(tmp_path / "models")
    with Server(config, warn=told.append) as server, triton.InferenceServerClient(server.grpc_url) as client:
        assert call(client, "once", 5) == 5
    assert starts.read_text() == "++"
    (line,) = told
    assert line.startswith("server start failed, trying again: server: ")


def test_start_fails_when_a_process_dies_at_each(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    version = write_model(tmp_path / "models", "fragile", None, TENSORS, "python")
    (version / "model.py").write_text(FRAGILE.format(flag=str(flag)))
    told: list[str] = []
    with pytest.raises(NotReady, match="'fragile_0_0' is not healthy"):
        Server(any_port(tmp_path / "models"), warn=told.append).start()
    assert len(told) == 2


def test_model_that_dies_at_every_start_is_given_up(
    server: Server, client: triton.InferenceServerClient, flag: Path
) -> None:
    flag.touch()
    probe = ["ready", "--live", "--processes", "--url", server.http_url]
    assert run(probe) == 0
    os.kill(pid_of(server, "fragile"), signal.SIGKILL)
    # The model leaves no trace of its own, and Triton says live and ready.
    wait_until(lambda: run(probe) == 1, "a probe that fails")
    wait_until(lambda: events(server)[-1]["event"] == "model_given_up", "the last attempt")
    wait_until(lambda: run(probe) == 0, "a server that lives on")
    last = events(server)[-1]
    assert (last["model"], last["deaths"]) == ("fragile", MAX_DEATHS)
    assert "fragile_0" in last["reason"]
    with pytest.raises(NotReady, match="has no available versions"):
        call(client, "fragile", 1)
    # Neither it nor the server that lacks it is ready; the others serve.
    ready = [f"models/{name}/ready" for name in ("fragile", "sum")]
    paths = [f"http://{server.http_url}/v2/{path}" for path in ("health/ready", "health/live", *ready)]
    assert [httpx.get(path).status_code for path in paths] == [400, 200, 400, 200]
    assert call(client, "sum", 1) == 1


def test_server_serves_again_on_its_ports_when_tritonserver_dies(
    server: Server, client: triton.InferenceServerClient, flag: Path
) -> None:
    flag.unlink(missing_ok=True)
    call(client, "other", 1, sequence_id=9, sequence_start=True)
    ports, before, told = server.config.ports, process_ids(server.server_id), len(events(server))
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSEGV)
    wait_until(lambda: len(events(server)) == told + 2, "another start")
    died, restarted = events(server)[told:]
    assert (died["reason"], restarted["restarts"], server.config.ports) == ("SIGSEGV", 1, ports)
    assert call(client, "sum", 5) == 5
    with pytest.raises(SessionLost):
        call(client, "other", 1, sequence_id=9)
    assert call(client, "fragile", 5) == 5
    assert metric(server, "slipway_server_restarts", "sum") == 1
    assert not set(before) & set(process_ids(server.server_id))


def test_server_that_stands_still_in_its_death_is_killed_and_serves_again(
    server: Server, client: triton.InferenceServerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand it was seen of a real one: debuggers, which could hold malloc's lock, are not everywhere."""
    before, pid = len(events(server)), server.pid
    assert pid is not None
    monkeypatch.setattr(supervision, "CRASH_TIMEOUT_S", 0.5)
    monkeypatch.setattr(supervision, "crash_signal", {pid: signal.SIGABRT}.get)
    wait_until(lambda: len(events(server)) == before + 2, "another start")
    died, restarted = events(server)[before:]
    assert restarted["event"] == "server_restarted"
    assert died["reason"] == "SIGABRT, killed after it hung for 0.5 s"
    assert call(client, "sum", 5) == 5


def test_model_is_given_up_when_its_folder_stays_away(
    server: Server, client: triton.InferenceServerClient, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FOLDER_MISSING_S", 0.5)
    folder = repository / "failing"
    folder.rename(repository.with_name("away"))
    os.kill(pid_of(server, "failing"), signal.SIGKILL)
    wait_until(lambda: events(server)[-1]["event"] == "model_given_up", "the end of the wait")
    assert (events(server)[-1]["model"], events(server)[-1]["reason"]) == (
        "failing",
        f"its folder {folder} is missing",
    )
    repository.with_name("away").rename(folder)
    assert call(client, "sum", 1) == 1


def test_stop_after_deaths_does_not_wait_for_what_died(repository: Path) -> None:
    """Triton counts requests that died with their process until its exit timeout, here beyond the test's."""
    server = Server(any_port(repository, exit_timeout_s=100_000))
    with server, triton.InferenceServerClient(server.grpc_url) as client:
        with healed(server, "sum"), pytest.raises(NotReady):
            call(client, "sum", -signal.SIGKILL)
        with pytest.raises(NotReady):
            call(client, "sum", -signal.SIGKILL)
        first, error = stream(server, -100 - signal.SIGKILL)
        assert first == 0 and isinstance(error, NotReady)
    assert not process_ids(server.server_id)
    assert not shared_memory_regions(server.server_id)


SERVE = "import typer; from slipway_serving.triton.commands import serve; typer.run(serve)"


def test_serve_gives_up_with_an_error_when_tritonserver_dies_again_and_again(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "graph", affine(), GRAPH)
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    command = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SERVE,
            f"--repository={tmp_path / 'models'}",
            f"--log-file={tmp_path / 'log'}",
            *ports,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    assert command.stdout
    assert any(line == "ready\n" for line in command.stdout)
    server_id = server_id_of(command.pid)
    while command.poll() is None:
        for pid in process_ids(server_id):
            with contextlib.suppress(psutil.Error):
                if (process := psutil.Process(pid)).name() == "tritonserver":
                    process.kill()
        time.sleep(0.05)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 1
    assert errors.count("server died: ") == MAX_DEATHS
    assert f"error: server: tritonserver died {MAX_DEATHS} times in a row and is not restarted" in errors
    assert not process_ids(server_id)
    assert not shared_memory_regions(server_id)
