"""What the chart relies on where several replicas stand behind one address: headers that proxies route
sessions by, and connections that move on without losing a request."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, Thread
from urllib.parse import unquote

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton
from server_fixtures import any_port, infer, tensor, wait_until, write_model, write_sleeper

from slipway_client import AsyncClient, Client, RetryPolicy, Turn
from slipway_client.http import transport
from slipway_client.tensors import SESSION_HEADER
from slipway_serving.triton.server import Server, ServerConfig

AGE_S = 1
SESSION = "kitchen/Küche 7"
# Triton hands matching headers to the model as parameters of the request.
TELLER = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        told = [np.array([request.parameters().encode()], dtype=object) for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("parameters", text)]) for text in told]
"""
ONE = {"x": np.zeros(1, np.float32)}


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> ServerConfig:
    """What every replica of the fleet is."""
    repository = tmp_path_factory.mktemp("fleet")
    config = tensor("input", "x", "FP32", "[1]") + tensor("output", "parameters", "STRING", "[1]")
    (write_model(repository, "teller", None, config, backend="python") / "model.py").write_text(TELLER)
    write_sleeper(repository)
    arguments = [f"--{protocol}-header-forward-pattern={SESSION_HEADER}" for protocol in ("http", "grpc")]
    arguments.append(f"--grpc-max-connection-age={AGE_S * 1000}")
    return any_port(repository, exit_timeout_s=120, arguments=tuple(arguments))


@pytest.fixture(scope="module")
def fleet_server(replica: ServerConfig) -> Iterator[Server]:
    with Server(replica) as running:
        yield running


def header(answer: dict[str, np.ndarray]) -> str | None:
    """The session's header as it reached the server."""
    found: str | None = json.loads(answer["parameters"].reshape(-1)[0]).get(SESSION_HEADER)
    return found


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_turn_names_its_session_in_a_header_and_other_requests_do_not(
    fleet_server: Server, protocol: str
) -> None:
    url = fleet_server.grpc_url if protocol == "grpc" else fleet_server.http_url
    with Client(url, protocol=protocol) as client:
        told = header(client.infer("teller", ONE, turn=Turn(SESSION, start=True)))
        assert told is not None
        assert told.isascii()
        assert unquote(told) == SESSION
        assert header(client.infer("teller", ONE)) is None


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_turn_names_its_session_from_asyncio_too(fleet_server: Server, protocol: str) -> None:
    url = fleet_server.grpc_url if protocol == "grpc" else fleet_server.http_url
    async with AsyncClient(url, protocol=protocol) as client:
        assert header(await client.infer("teller", ONE, turn=Turn(7, start=True))) == "7"


def test_connection_moves_on_at_its_age_and_requests_under_way_finish(fleet_server: Server) -> None:
    with triton.InferenceServerClient(fleet_server.grpc_url) as client:
        longer = np.array([2.5 * AGE_S], np.float32)
        assert infer(client, "sleeper", seconds=longer)["slept"] == longer
        for _ in range(20):  # across two more ages
            short = np.array([0.1], np.float32)
            assert infer(client, "sleeper", seconds=short)["slept"] == short


def test_connections_end_at_their_age(fleet_server: Server) -> None:
    port = fleet_server.config.grpc_port
    with triton.InferenceServerClient(fleet_server.grpc_url) as client:
        assert client.is_server_live()
        first = established(port)
        assert first
        wait_until(lambda: not first & established(port), "the first connection ends")
        assert client.is_server_live()


class Service:
    """As kube-proxy: a connection goes to the endpoint of the moment in which it is made, and stays there."""

    def __init__(self, endpoint: int) -> None:
        self.endpoint = endpoint
        self._open: dict[socket.socket, int] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def connections(self, endpoint: int) -> int:
        """Return how many connections to an endpoint are open."""
        return list(self._open.values()).count(endpoint)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                endpoint = self.endpoint
                server = socket.create_connection(("127.0.0.1", endpoint))
                self._open[server] = endpoint
                for source, target in ((client, server), (server, client)):
                    Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        self._open.pop(source, None)  # the endpoint has ended it


def replaced_under_load(old: Server, new: Server, *, moved_on: bool) -> tuple[int, list[str]]:
    """Replace a replica as Kubernetes does while four clients ask; return the answers and what failed.

    Args:
        old: has a job under way when it is stopped.
        new: what new connections lead to from the moment before.
        moved_on: whether the stop waits until the clients' connections to the old one have ended.
    """
    service, over = Service(old.config.grpc_port), Event()
    answered: list[int] = []
    failed: list[str] = []

    def ask() -> None:
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
        with triton.InferenceServerClient(service.url, channel_args=own) as client:
            while not over.is_set():
                try:
                    infer(client, "teller", x=np.zeros(1, np.float32))
                    answered.append(1)
                except triton.InferenceServerException as error:
                    failed.append(str(error))
                    over.wait(0.1)

    def job() -> None:
        with triton.InferenceServerClient(old.grpc_url) as client:
            infer(client, "sleeper", seconds=np.array([8.0], np.float32))
            answered.append(1)

    with ThreadPoolExecutor(5) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        wait_until(lambda: len(answered) >= 20, "requests are under way")
        working = pool.submit(job)
        service.endpoint = new.config.grpc_port
        if moved_on:
            gone = old.config.grpc_port
            wait_until(lambda: service.connections(gone) == 0, "the connections move on")
        old.stop()
        working.result()
        before = len(answered)
        wait_until(lambda: len(answered) >= before + 20 or bool(failed), "requests go on")
        over.set()
        for task in asking:
            task.result()
    service.close()
    return len(answered), failed


def test_no_request_fails_when_a_replica_stops_after_its_connections_moved_on(
    replica: ServerConfig, fleet_server: Server
) -> None:
    with Server(replica) as old:
        answered, failed = replaced_under_load(old, fleet_server, moved_on=True)
    assert failed == []
    assert answered > 50


def test_requests_fail_when_a_replica_stops_before_its_connections_moved_on(
    replica: ServerConfig, fleet_server: Server
) -> None:
    # One whose connections have no age, or a busy machine may be so slow to stop that they move on before.
    headers = tuple(each for each in replica.arguments if "connection-age" not in each)
    assert len(headers) == len(replica.arguments) - 1
    with Server(replace(replica, arguments=headers)) as old:
        _, failed = replaced_under_load(old, fleet_server, moved_on=False)
    assert any("has no available versions" in error for error in failed)


def test_no_request_fails_over_http_when_a_replica_stops_after_its_connections_moved_on(
    replica: ServerConfig, fleet_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "AGE_S", 0.2)
    over = Event()
    answered: list[int] = []

    def ask() -> None:
        with Client(service.url, "http", retry=RetryPolicy(budget_s=0)) as client:
            while not over.is_set():
                client.infer("teller", ONE)
                answered.append(1)

    with Server(replica) as old, ThreadPoolExecutor(4) as pool:
        service = Service(old.config.http_port)
        try:
            asking = [pool.submit(ask) for _ in range(4)]
            wait_until(lambda: len(answered) >= 20, "requests are under way")
            service.endpoint = fleet_server.config.http_port
            gone = old.config.http_port
            wait_until(lambda: service.connections(gone) == 0, "the connections move on")
            old.stop()
            before = len(answered)
            wait_until(lambda: len(answered) >= before + 20, "requests go on")
        finally:
            over.set()
        for task in asking:
            task.result()
        service.close()


def established(port: int) -> set[object]:
    """The local ends of this process's connections to a port of this machine."""
    connections = psutil.Process().net_connections("tcp")
    return {
        each.laddr
        for each in connections
        if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
    }
