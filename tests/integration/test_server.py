"""The embedded server's life: ready, in-flight work on stop, refusals, and nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from server_fixtures import (
    ODD,
    affine,
    any_port,
    infer,
    infer_input,
    mode,
    nothing_is_left,
    tensor,
    wait_until,
    write_model,
    write_sleeper,
)

from slipway_cli.root import run
from slipway_client.grpc.transport import GrpcTransport
from slipway_client.retry import Deadline
from slipway_serving.protocol.errors import DeadlineExceeded, InvalidRequest, NotReady
from slipway_serving.runtime.backends.onnxruntime.accelerators import ENGINE_CACHE
from slipway_serving.system import server_processes
from slipway_serving.system.server_folder import runtime_folder_at
from slipway_serving.system.server_processes import SHARED_MEMORY, process_ids, shared_memory_regions
from slipway_serving.triton import log_files
from slipway_serving.triton import server as server_module
from slipway_serving.triton.server import Server
from slipway_serving.triton.start import ready

CONFIG = "max_batch_size: 8\n" + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
ONES = np.ones((1, 4), np.float32)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model."""
    write_model(tmp_path / "models", "affine", affine(), CONFIG)
    return tmp_path / "models"


@pytest.fixture
def sleepers(tmp_path: Path) -> Path:
    """A repository with a model that sleeps."""
    write_sleeper(tmp_path / "models")
    return tmp_path / "models"


def assert_ready_tells_lost_processes(server: Server) -> None:
    """`slipway ready --processes` and the endpoint for probes fail as long as a process is gone."""
    folder = runtime_folder_at(server.config.http_port)
    assert folder is not None
    (ours,) = (folder / "footprints" / "affine").iterdir()
    assert run(["ready", "--processes", "--url", server.http_url]) == 0
    killed = shutil.copytree(ours, ours.with_name("1-0-killed_0"))  # no process that started then
    for port in (server.http_url, server.grpc_url):
        for flags in ([], ["--live"]):
            assert run(["ready", *flags, "--processes", "--url", port]) == 1
            assert run(["ready", *flags, "--url", port]) == 0
    for state in ("ready", "live"):
        answer = httpx.get(f"{server.probe_url}/{state}", trust_env=False)
        assert answer.status_code == 503
        assert answer.text.startswith("ready: the process of killed_0 has died")
    shutil.rmtree(killed)
    for state in ("ready", "live"):
        answer = httpx.get(f"{server.probe_url}/{state}", trust_env=False)
        assert (answer.status_code, answer.text) == (200, f"{state}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_processes, "crash_signal", {server.pid: signal.SIGABRT}.get)
        assert run(["ready", "--live", "--processes", "--url", server.grpc_url]) == 1
    assert run(["ready", "--live", "--processes", "--url", server.grpc_url]) == 0


@pytest.mark.python_graphs
def test_start_and_stop_leave_nothing(repository: Path) -> None:
    # A stop that waited for its exit timeout would outlast the test's own limit.
    server = Server(any_port(repository, exit_timeout_s=100_000, probe_port=0))
    with server:
        assert server.models() == ["affine"]
        assert len(process_ids(server.server_id)) >= 2  # the server and a stub
        assert_ready_tells_lost_processes(server)
        assert shared_memory_regions(server.server_id)
        # Requests pass through these: no other user of the machine may read them.
        private = [
            *shared_memory_regions(server.server_id),
            *Path("/tmp").glob(f"{server.server_id}*"),
            server.log_path,
        ]
        assert {path: mode(path) & 0o077 for path in private} == dict.fromkeys(private, 0)
        with triton.InferenceServerClient(server.grpc_url) as client:
            np.testing.assert_array_equal(infer(client, "affine", x=ONES)["y"], 2 * ONES + 1)
        assert listening_addresses(server.pid) == {"127.0.0.1"}
    assert not server.is_alive()
    assert nothing_is_left(server.server_id)
    assert not list(Path("/tmp").glob(f"{server.server_id}*"))
    server.stop()  # a second one does nothing


def listening_addresses(pid: int | None) -> set[str]:
    """Return the IPv4 addresses that a process listens on."""
    connections = psutil.Process(pid).net_connections("tcp4")
    return {found.laddr.ip for found in connections if found.status == psutil.CONN_LISTEN}


def test_stop_does_not_wait_for_calls_that_were_too_late(repository: Path, tmp_path: Path) -> None:
    """Triton 2.51 counts a call that is cut as it comes until the exit timeout."""
    log, late = tmp_path / "triton.log", 0
    with Server(any_port(repository, exit_timeout_s=60, log_path=log)) as server:
        transport = GrpcTransport(server.grpc_url, 10.0)
        for _ in range(400):
            try:
                transport.infer("affine", {"x": ONES}, Deadline(0.001, "affine"))
            except DeadlineExceeded:
                late += 1
        transport.close()
    assert late > 10
    assert "Exit timeout expired" not in log.read_text()


def test_start_fails_naming_each_model_when_models_cannot_load(repository: Path) -> None:
    write_model(repository, "corrupt", b"not a graph", CONFIG)
    write_model(repository, "wrong", affine(width=3), CONFIG)
    server = Server(any_port(repository))
    with pytest.raises(NotReady) as caught:
        server.start()
    text = str(caught.value)
    assert text.startswith("server: 2 model(s) failed to load:")
    # By our backend, or in the words of Triton's C++ backend.
    assert re.search(
        r"\n  corrupt: (model file must be a graph|onnx runtime error 7).*corrupt/1/model.onnx", text
    )
    assert re.search(r"\n  wrong: (input x must have dims \[3\] .*\[4\]|.*'x'.*\[-1,3\].*\[-1,4\])", text)
    assert "TritonModelException" not in text
    assert str(server.log_path) in text
    # The path is the user's, not that of the server's link to it.
    assert f"{repository}/corrupt/1/model.onnx" in text
    assert "corrupt" in server.log_path.read_text()
    assert mode(server.log_path.parent) == 0o700
    assert mode(server.log_path) == 0o600
    shutil.rmtree(server.log_path.parent)
    assert nothing_is_left(server.server_id)


def test_start_fails_soon_when_a_python_model_has_no_code(repository: Path) -> None:
    write_model(repository, "empty", None, CONFIG, backend="python")
    server = Server(any_port(repository))
    with pytest.raises(NotReady, match=r"empty: Python model file not found in '.*/empty/1/model\.py'"):
        server.start()
    shutil.rmtree(server.log_path.parent)
    assert nothing_is_left(server.server_id)


def test_start_fails_naming_the_model_when_it_loads_too_long(
    sleepers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = sleepers / "sleeper" / "1" / "model.py"
    code.write_text(code.read_text() + "\ntime.sleep(100_000)\n")
    log_path = tmp_path / "server.log"
    jumped_s = 0.0

    def clock_s() -> float:
        """The limit is over at the second look after the model has begun to load, however long that takes."""
        nonlocal jumped_s
        if log_path.exists() and "loading: sleeper:1" in log_path.read_text():
            jumped_s += 2e6
        return time.monotonic() + jumped_s

    monkeypatch.setattr(ready, "time", SimpleNamespace(monotonic=clock_s, sleep=time.sleep))
    server = Server(any_port(sleepers, ready_timeout_s=1e6, log_path=log_path))
    with pytest.raises(NotReady, match=r"must load within 1e\+06 s, still loading: sleeper; log: "):
        server.start()
    assert nothing_is_left(server.server_id)


def test_stop_lets_requests_in_flight_finish(sleepers: Path) -> None:
    config = any_port(sleepers, exit_timeout_s=300)
    with Server(config) as server, in_flight(server, seconds=1.0) as answers:
        server.stop()
        wait_until(lambda: bool(answers), "the request's answer")
        assert not isinstance(answers[0], Exception)
        np.testing.assert_array_equal(answers[0].as_numpy("slept"), np.float32([1.0]))
    assert nothing_is_left(server.server_id)


def test_stop_does_not_wait_longer_than_the_limit(sleepers: Path) -> None:
    with Server(any_port(sleepers, exit_timeout_s=0)) as server, in_flight(server, seconds=1e5) as answers:
        server.stop()
        wait_until(lambda: bool(answers), "the request's end")
        assert isinstance(answers[0], Exception)
    assert nothing_is_left(server.server_id)


@contextmanager
def in_flight(server: Server, seconds: float) -> Iterator[list[object]]:
    """Have a request executing; yield the list that its answer or error will be put in."""
    answers: list[object] = []
    with triton.InferenceServerClient(server.grpc_url) as client:
        inputs = [infer_input("seconds", np.array([seconds], np.float32))]
        client.async_infer("sleeper", inputs, lambda result, error: answers.append(error or result))
        wait_until(lambda: "sleeping" in server.log_text(), "the request's start")
        yield answers


def test_start_fails_when_a_port_is_in_use(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(replace(any_port(repository), grpc_port=port))
        with pytest.raises(InvalidRequest, match=f"grpc_port must be free on 127.0.0.1, got {port}"):
            server.start()
    assert nothing_is_left(server.server_id)


SERVE = "import typer; from slipway_serving.triton.commands import serve; typer.run(serve)"


@contextmanager
def serve(repository: Path, *flags: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """Run the command `serve` on free ports; end it, if it still runs, in good order."""
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
    command = subprocess.Popen(
        [python, "-c", SERVE, f"--repository={repository}", *ports, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield command
    finally:
        command.terminate()
        command.communicate(timeout=300)


def read_until_ready(command: subprocess.Popen[str]) -> str:
    """Return what the command says until it is ready."""
    assert command.stdout
    text = ""
    while not text.endswith("ready\n"):
        line = command.stdout.readline()
        assert line, f"ended before it was ready: {text} {command.communicate()}"
        text += line
    return text


def server_id_of(command: subprocess.Popen[str]) -> str:
    """Return the id of the server that a command runs, from its shared memory."""
    (prefix,) = {
        re.match(r"slipway-\d+-[0-9a-f]+-", path.name)[0]  # type: ignore[index]
        for path in SHARED_MEMORY.glob(f"slipway-{command.pid}-*")
    }
    return prefix


def test_serve_exits_0_and_leaves_nothing_on_sigterm(repository: Path) -> None:
    with serve(repository, "--verbose") as command:
        text = read_until_ready(command)
        assert re.search(r"^grpc +127\.0\.0\.1:\d+$", text, re.MULTILINE)
        assert re.search(r"^models +affine$", text, re.MULTILINE)
        server_id = server_id_of(command)
        command.send_signal(signal.SIGTERM)
        _, errors = command.communicate(timeout=300)
    assert command.returncode == 0
    assert "successfully loaded 'affine'" in errors
    assert "stopped\n" in errors
    assert nothing_is_left(server_id)


def test_serve_says_which_models_load_when_asked(repository: Path) -> None:
    with serve(repository, "--progress") as command:
        read_until_ready(command)
        command.send_signal(signal.SIGTERM)
        _, errors = command.communicate(timeout=300)
    said, loaded, stopped = errors.splitlines()[0], *errors.splitlines()[-2:]
    assert re.fullmatch(r"loading affine \(1 of 1, 0\.0 MB on disk\)", said)
    assert re.fullmatch(r"loaded affine \(1 of 1, after [\d.]+ s\)", loaded)
    assert stopped == "stopped"


def test_serve_exits_0_and_leaves_nothing_on_ctrl_c_while_models_load(sleepers: Path) -> None:
    code = sleepers / "sleeper" / "1" / "model.py"
    code.write_text(code.read_text() + "\ntime.sleep(100_000)\n")
    with serve(sleepers) as command:
        wait_until(
            lambda: bool(shared_memory_regions(f"slipway-{command.pid}-")), "the start of the model's stub"
        )
        server_id = server_id_of(command)
        command.send_signal(signal.SIGINT)
        output, errors = command.communicate(timeout=300)
    assert (command.returncode, output, errors) == (0, "", "stopped\n")
    assert nothing_is_left(server_id)
    assert not list(Path("/tmp").glob(f"{server_id}*"))


def test_serve_says_why_and_exits_when_a_model_fails(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "corrupt", b"not a graph", CONFIG)
    log_path = tmp_path / "server.log"
    with serve(tmp_path / "models", f"--log-file={log_path}") as command:
        output, errors = command.communicate(timeout=300)
    assert command.returncode == 1
    assert output == ""
    assert errors.startswith("error: server: 1 model(s) failed to load:\n  corrupt: ")
    assert str(log_path) in errors
    assert "Traceback" not in errors


def test_killed_parent_leaves_nothing(repository: Path) -> None:
    with serve(repository, "--exit-timeout-s=1") as command:
        read_until_ready(command)
        server_id = server_id_of(command)
        assert process_ids(server_id)
        command.kill()
        command.communicate()
        log = log_files.default_path(server_id)
        assert "Started" in log.read_text()  # for whoever asks why the command was killed
        wait_until(lambda: not process_ids(server_id), "the watcher's work")
        wait_until(lambda: set(Path("/tmp").glob(f"{server_id}*")) == {log.parent}, "the end of its work")
    shutil.rmtree(log.parent)


def test_other_ports_are_picked_when_a_picked_one_is_taken(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        pick = server_module.free_ports
        picks = iter([port])  # the first pick is taken by the time that Triton binds it

        def pick_late(host: str, wanted: Mapping[str, int]) -> dict[str, int]:
            picked = pick(host, wanted)
            return picked | {"http_port": next(picks, picked["http_port"])}

        monkeypatch.setattr(server_module, "free_ports", pick_late)
        with Server(any_port(repository)) as server:
            assert server.config.http_port not in (0, port)
            assert server.models() == ["affine"]


def test_engines_lie_in_the_named_folder_when_the_server_is_given_one(
    repository: Path, tmp_path: Path
) -> None:
    cache = tmp_path / ODD / "engines"
    with Server(replace(any_port(repository), engine_cache=cache)) as server:
        assert server._process is not None
        # ONNX Runtime takes the path of the configuration from the working directory of `tritonserver`.
        link = Path(f"/proc/{server._process.pid}/cwd") / ENGINE_CACHE
        (link / "engine").write_text("built")
    assert (cache / "engine").read_text() == "built"


def test_start_is_refused_when_the_folder_of_engines_is_a_file(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "engines").touch()
    server = Server(replace(any_port(repository), engine_cache=tmp_path / "engines"))
    with pytest.raises(InvalidRequest, match="engine_cache must be a folder that can be written, got /"):
        server.start()


# As a family in another distribution is: a package that Triton's stub has to find.
OUTSIDER = """
import outside_family
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", outside_family.FACTOR * x.as_numpy())])
            for x in (pb_utils.get_input_tensor_by_name(request, "x") for request in requests)
        ]
"""


@pytest.fixture
def outsider(tmp_path: Path) -> Path:
    """A repository whose one model imports the package `outside_family`, and beside it that package."""
    (write_model(tmp_path / "models", "outsider", None, CONFIG, backend="python") / "model.py").write_text(
        OUTSIDER
    )
    package = tmp_path / "source" / "outside_family"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import numpy as np\n\nFACTOR = np.float32(3)\n")
    return tmp_path / "models"


def test_start_fails_when_a_model_imports_what_is_nowhere(outsider: Path) -> None:
    server = Server(any_port(outsider))
    with pytest.raises(NotReady, match="No module named 'outside_family'"):
        server.start()
    shutil.rmtree(server.log_path.parent)


@pytest.mark.parametrize("relative", [False, True])
def test_model_finds_a_package_when_it_is_on_the_pythonpath(
    outsider: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(outsider.parent)
    (outsider.parent / "source").rename(outsider.parent / ODD)
    folders = ["nowhere", ODD if relative else str(outsider.parent / ODD)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    with Server(any_port(outsider)) as server, triton.InferenceServerClient(server.grpc_url) as client:
        np.testing.assert_array_equal(infer(client, "outsider", x=ONES)["y"], 3 * ONES)


def test_model_finds_a_package_when_it_is_installed_editable(outsider: Path, tmp_path: Path) -> None:
    """An editable install is a .pth file in the virtual environment that the server is started from."""
    environment = tmp_path / ODD
    venv.create(environment, symlinks=True)
    (packages,) = (environment / "lib").glob("python3.*/site-packages")
    (packages / "outside_family.pth").write_text(f"{outsider.parent / 'source'}\n")
    # Everything else is this environment's.
    (packages / "others.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    with serve(outsider, python=str(environment / "bin" / "python")) as command:
        assert re.search(r"^models +outsider$", read_until_ready(command), re.MULTILINE)
