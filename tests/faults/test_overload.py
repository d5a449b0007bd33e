"""Overload: what is beyond a queue's limits is refused at once, and what was admitted ends well.

The models wait for a file to appear, so that a test decides when their work is done. Their queues have the
limits that an export writes.
"""

from __future__ import annotations

import queue
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from health import Health, healthy
from onnx import TensorProto, helper
from server_fixtures import any_port, graph, infer_input, tensor, wait_until, write_model

import slipway_models
from slipway_client import Client
from slipway_client.retry import RetryPolicy
from slipway_export.repository.queues import QueueLimits
from slipway_serving.protocol.errors import Overloaded, from_wire
from slipway_serving.protocol.turns import Turn
from slipway_serving.triton.server import Server

WAITING, WAIT_S = 2, 1.0
HINT = "try again in a few seconds, or send fewer requests at a time"
ONCE = RetryPolicy(budget_s=0)
GATED = """
import json
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"])
        self.began, self.gate = folder / "began", folder / "gate"
        config = json.loads(args["model_config"])
        self.streams = pb_utils.using_decoupled_model_transaction_policy(config)

    def execute(self, requests):
        self.began.touch()
        while not self.gate.exists():
            time.sleep(0.01)
        answers = [self.answer(request) for request in requests]
        if not self.streams:
            return answers
        for request, answer in zip(requests, answers):
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            request.get_response_sender().send(answer, flags=final)

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "given").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("twice", 2 * given)])
"""
SLOW = """
import time


class Slow:
    reports_requests = False

    def __init__(self, settings):
        pass

    def run(self, call):
        time.sleep(0.1)
        yield {"twice": 2 * call.tensors["given"]}

    def close(self):
        pass
"""
TOGETHER = (
    SLOW
    + """
    def run_batch(self, calls):
        time.sleep(0.1)
        return [{"twice": 2 * call.tensors["given"]} for call in calls]
"""
)
Kind = Literal["merging", "streaming", "impatient", "program", "graph"]
MODELS: dict[Kind, str] = {
    "merging": "max_batch_size: 8",
    "streaming": "max_batch_size: 0 model_transaction_policy { decoupled: true }",
    # A queue that does not fill within a test, but whose requests may wait for a moment only.
    "impatient": "max_batch_size: 0",
}
# Models of short requests keep a limit of their own.
SHORT = "max_batch_size: 0 parameters { key: 'queue_limit' value { string_value: '64' } }\n"


class Gate:
    """Decides when a model's work is done.

    Args:
        folder: of the model.
    """

    def __init__(self, folder: Path) -> None:
        self._began, self._gate = folder / "began", folder / "gate"
        self._began.unlink(missing_ok=True)
        self._gate.unlink(missing_ok=True)

    def open(self) -> None:
        self._gate.touch()

    def wait_until_at_work(self) -> None:
        wait_until(self._began.exists, "the model is at work")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overload")
    for name, kind in MODELS.items():
        config = "dynamic_batching { default_queue_policy { } }\n" + kind + "\n"
        config += tensor("input", "given", "FP32", "[1]") + tensor("output", "twice", "FP32", "[1]")
        version = write_model(folder, name, None, config, backend="python")
        (version / "model.py").write_text(GATED)
        limits = QueueLimits(100, WAIT_S) if name == "impatient" else QueueLimits(WAITING, 600)
        limits.write(folder / name / "config.pbtxt")
    tensors = tensor("input", "given", "FP32", "[1]") + tensor("output", "twice", "FP32", "[1]")
    write_model(folder, "graph", slow(), SHORT + tensors)
    program = "parameters { key: 'program' value { string_value: 'slow_program:Slow' } }\n"
    batches = "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
    merged = SHORT.replace("max_batch_size: 0", "max_batch_size: 8") + batches
    for name, text, config in (("program", SLOW, SHORT), ("sessions", TOGETHER, merged)):
        version = write_model(folder, name, None, config + tensors + program, backend="python")
        (version / "slow_program.py").write_text(text)
        shutil.copy(Path(slipway_models.__file__).parent / "airimu" / "1" / "model.py", version)
    for name in ("graph", "program", "sessions"):
        QueueLimits(WAITING).write(folder / name / "config.pbtxt")
    return folder


def slow() -> onnx.ModelProto:
    """twice = 2 * given, after some 0.1 s of products of zeros."""
    side = 768
    nodes = [helper.make_node("Mul", ["given", "zeros"], ["product_0"])]
    nodes += [helper.make_node("MatMul", [f"product_{i}", "zeros"], [f"product_{i + 1}"]) for i in range(6)]
    nodes += [
        helper.make_node("ReduceSum", ["product_6"], ["zero"], keepdims=0),
        helper.make_node("Add", ["given", "given"], ["sum"]),
        helper.make_node("Add", ["sum", "zero"], ["twice"]),
    ]
    given, twice = ({name: (TensorProto.FLOAT, [1])} for name in ("given", "twice"))
    return graph(nodes, given, twice, {"zeros": np.zeros((side, side), np.float32)})


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(any_port(repository)) as running:
        yield running


@pytest.fixture
def send(server: Server) -> Iterator[Callable[[Kind, float], Future[float]]]:
    """Send a request in the background, once; its answer is twice what is given."""
    with ThreadPoolExecutor(16) as pool, Client(server.grpc_url, retry=ONCE) as client:

        def ask(model: Kind, given: float) -> float:
            array = np.full((1, 1) if model == "merging" else (1,), given, np.float32)
            if model == "streaming":
                return streamed(server, model, array)
            return float(client.infer(model, {"given": array})["twice"].item())

        yield lambda model, given: pool.submit(ask, model, given)


def streamed(server: Server, model: Kind, given: np.ndarray) -> float:
    """Ask a model that streams; raise its error as our client does."""
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer(model, [infer_input("given", given)])
        answer = answers.get(timeout=120)
    if isinstance(answer, Exception):
        raise from_wire(answer.message())
    return float(answer.as_numpy("twice").item())


def refused(futures: list[Future[Any]]) -> list[Any]:
    return [future.exception() for future in futures if future.done() and future.exception() is not None]


@pytest.fixture
def health(
    server: Server, repository: Path, send: Callable[[Kind, float], Future[float]]
) -> Iterator[Health]:
    """What the server's health was before a test; it must be back after it."""

    def good(_: Server) -> None:
        for model in MODELS:
            Gate(repository / model).open()
        assert [send(model, 21).result(60) for model in MODELS] == [42] * len(MODELS)

    with healthy(server, good) as before:
        yield before


@pytest.mark.parametrize("model", ["merging", "streaming"])
def test_full_queue_refuses_at_once_while_what_was_admitted_ends(
    health: Health, repository: Path, send: Callable[[Kind, float], Future[float]], model: Kind
) -> None:
    gate = Gate(repository / model)
    try:
        first = send(model, 0)
        gate.wait_until_at_work()
        others = [send(model, given) for given in range(1, 9)]
        # Nothing was answered yet, so these did not wait for it.
        wait_until(lambda: len(refused(others)) == len(others) - WAITING, "the others are refused")
        assert not first.done()
        for error in refused(others):
            assert isinstance(error, Overloaded)
            assert "Exceeds maximum queue size" in str(error)
            assert str(error).endswith(HINT)
    finally:
        gate.open()
    assert first.result(60) == 0
    ended = {given: other for given, other in enumerate(others, 1) if other.exception(60) is None}
    answers = {given: other.result() for given, other in ended.items()}
    assert len(answers) == WAITING
    assert answers == {given: 2 * given for given in answers}


@pytest.mark.parametrize("model", ["program", pytest.param("graph", marks=pytest.mark.python_graphs)])
def test_model_of_short_requests_refuses_those_beyond_its_limit_and_answers_the_others(
    health: Health, send: Callable[[Kind, float], Future[float]], model: Kind
) -> None:
    asked = {given: send(model, given) for given in range(16)}
    late = [other.exception(120) for other in asked.values()]
    # How many depends on when the model looks; with no limit none would be.
    errors = [error for error in late if error is not None]
    assert 0 < len(errors) < len(asked) - WAITING
    for error in errors:
        assert isinstance(error, Overloaded)
        assert str(error) == f"{model}: the queue is full (at most {WAITING} requests may wait); {HINT}"
    answers = {given: other.result() for given, other in asked.items() if other.exception() is None}
    assert answers == {given: 2 * given for given in answers}


def test_sessions_end_however_many_requests_wait(health: Health, server: Server) -> None:
    kinds = [Turn(1, start=True), Turn(1), Turn(1, end=True)]
    with ThreadPoolExecutor(48) as pool, Client(server.grpc_url, retry=ONCE) as client:

        def ask(number: int) -> float:
            given = np.full((1, 1), number, np.float32)
            turn = replace(kinds[number % len(kinds)], id=number + 1)
            return float(client.infer("sessions", {"given": given}, turn=turn)["twice"].item())

        asked = {number: pool.submit(ask, number) for number in range(48)}
        errors = {number: each.exception(120) for number, each in asked.items()}
    refusals = [error for error in errors.values() if error is not None]
    assert refusals
    assert all(isinstance(error, Overloaded) for error in refusals)
    assert [errors[number] for number in asked if kinds[number % len(kinds)].end] == [None] * 16
    assert all(asked[number].result() == 2 * number for number, error in errors.items() if error is None)


def test_request_that_waits_longer_than_its_queue_allows_is_refused(
    health: Health, server: Server, repository: Path, send: Callable[[Kind, float], Future[float]]
) -> None:
    def rejected() -> bool:
        text = httpx.get(server.metrics_url, trust_env=False).text
        return 'failure{model="impatient",reason="REJECTED",version="1"} 1\n' in text

    assert not rejected()
    gate = Gate(repository / "impatient")
    try:
        first = send("impatient", 1)
        gate.wait_until_at_work()
        late = send("impatient", 2)
        error = late.exception(60)
        assert isinstance(error, Overloaded)
        assert str(error) == f"Request timeout expired; {HINT}"
        assert not first.done()
        wait_until(rejected, "the refusal is counted")
    finally:
        gate.open()
    assert first.result(60) == 2


def test_refusal_over_http_is_tried_again_by_a_patient_client(
    health: Health, server: Server, repository: Path
) -> None:
    gate = Gate(repository / "merging")
    given = np.ones((1, 1), np.float32)
    try:
        with (
            ThreadPoolExecutor(8) as pool,
            Client(server.http_url, "http", retry=ONCE) as client,
            Client(server.http_url, "http", retry=RetryPolicy(budget_s=120)) as patient,
        ):
            first = pool.submit(client.infer, "merging", {"given": given})
            gate.wait_until_at_work()
            others = [pool.submit(client.infer, "merging", {"given": given}) for _ in range(2 * WAITING)]
            wait_until(lambda: len(refused(others)) == WAITING, "the queue is full")
            later = pool.submit(patient.infer, "merging", {"given": given})
            gate.open()
            assert later.result(120)["twice"].item() == first.result(60)["twice"].item() == 2
            assert all(isinstance(error, Overloaded) for error in refused(others))
    finally:
        gate.open()
