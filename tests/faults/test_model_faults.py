"""Models and callers that fail: what is under way beside them goes on, and nothing of theirs stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from health import ONES, answer_well, healthy, look
from memory_group import memory_group
from prometheus_client.parser import text_string_to_metric_families
from raw_http import connect, post
from server_fixtures import affine, any_port, infer, infer_all, infer_input, tensor, wait_until, write_model
from tritonclient.utils import InferenceServerException

from slipway_client import Client, InvalidRequest, RetryPolicy, SlipwayError, Unrecoverable
from slipway_serving.protocol.errors import NotReady, from_wire
from slipway_serving.system.server_processes import stubs
from slipway_serving.triton.control import CONTROL_HEADER, ModelControl
from slipway_serving.triton.server import Server

AFFINE = "max_batch_size: 8\n" + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
AT_ONCE = RetryPolicy(budget_s=0.0)


@pytest.fixture
def client(cheap: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(cheap.grpc_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose models are loaded and unloaded, after which Triton 2.51 is not ready as a whole."""
    repository = tmp_path_factory.mktemp("ordered") / "models"
    write_model(repository, "affine", affine(), AFFINE)
    with Server(any_port(repository, model_control="explicit")) as running:
        yield running


@pytest.fixture
def control(ordered: Server) -> ModelControl:
    return ModelControl(ordered.http_url, ordered.control_token)


def seconds(value: float) -> dict[str, np.ndarray]:
    return {"seconds": np.array([value], np.float32)}


def counted(server: Server, name: str, **labels: str) -> float:
    text = httpx.get(server.metrics_url, timeout=60).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def restarted(server: Server) -> int:
    return server.log_text().count('\\"event\\": \\"model_restarted\\"')


def slept(server: Server) -> int:
    return server.log_text().count('"sleeping"')


@pytest.mark.python_graphs
@pytest.mark.usefixtures("health")
def test_others_of_a_batch_are_answered_as_alone_when_one_is_bad(
    client: triton.InferenceServerClient,
) -> None:
    indices = [0, 1, 99, 3, 2, -99, 1, 0]
    asked = [{"index": np.array([[index]], np.int64)} for index in indices]
    for index, answer in zip(indices, infer_all(client, "lookup", asked), strict=True):
        if index in range(4):
            np.testing.assert_array_equal(answer.as_numpy("y"), [[10.0 + index]])
        else:
            assert isinstance(answer, InferenceServerException)


@pytest.mark.usefixtures("health")
def test_error_of_a_model_is_counted_and_tells_its_caller_nothing_of_the_program(
    cheap: Server, client: triton.InferenceServerClient
) -> None:
    # Triton 2.51 counts errors with a code in no reason of nv_inference_request_failure.
    failed = {"name": "slipway_requests_total", "model": "told", "code": "INTERNAL"}
    before = counted(cheap, **failed)
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "told", steps=np.array([7]))
    text = caught.value.message()
    assert text.startswith("[INTERNAL] told: the model failed with RuntimeError")
    assert "secret" not in text
    assert "Traceback" not in text
    wait_until(lambda: counted(cheap, **failed) == before + 1, "failure in the metrics", 60)
    assert "a secret of the model" in cheap.log_text()
    np.testing.assert_array_equal(infer(client, "told", steps=np.array([4]))["y"], [8])


def test_process_that_cannot_use_its_device_again_ends_and_another_serves(
    cheap: Server, client: triton.InferenceServerClient
) -> None:
    with healthy(cheap, same_processes=False) as before:
        restarts = restarted(cheap)
        with pytest.raises(InferenceServerException, match="failed with RuntimeError"):
            infer(client, "told", steps=np.array([8]))
        wait_until(lambda: restarted(cheap) > restarts, "another process of the model", 120)
        np.testing.assert_array_equal(infer(client, "told", steps=np.array([4]))["y"], [8])
        assert len(before.stubs - look(cheap).stubs) == 1


@pytest.mark.usefixtures("health")
def test_request_above_the_operators_limits_is_refused_by_name(cheap: Server) -> None:
    with Client(cheap.grpc_url, retry=AT_ONCE) as client:
        for tensors, said in (
            ({"steps": np.array([11])}, "steps must be at most 10 on this server, got 11"),
            (
                {"steps": np.array([1]), "prompt": np.array([b"x" * 101], object)},
                "prompt must be at most 100 on this server, got 101",
            ),
        ):
            with pytest.raises(InvalidRequest, match=said):
                client.infer("told", tensors)
        np.testing.assert_array_equal(client.infer("told", {"steps": np.array([10])})["y"], [20])


@pytest.mark.usefixtures("health")
def test_caller_with_a_deadline_is_told_and_the_next_is_served(
    cheap: Server, client: triton.InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        client.infer("sleeper", [infer_input("seconds", np.array([1.0], np.float32))], client_timeout=0.2)
    assert infer(client, "sleeper", **seconds(0.0))["slept"] == 0


@pytest.mark.usefixtures("health")
def test_server_goes_on_when_an_http_caller_hangs_up_amid_its_request(cheap: Server) -> None:
    before = slept(cheap)
    body = b'{"inputs": [{"name": "seconds", "datatype": "FP32", "shape": [1], "data": [0.5]}]}'
    with closing(connect(cheap)) as connection:
        connection.sendall(post("/v2/models/sleeper/infer", body))
        wait_until(lambda: slept(cheap) == before + 1, "the request at work", 60)


CALLER = """
import sys, numpy as np, tritonclient.grpc as triton
client = triton.InferenceServerClient(sys.argv[1])
given = triton.InferInput("seconds", [1], "FP32")
given.set_data_from_numpy(np.array([1.0], np.float32))
print("asking", flush=True)
client.infer("sleeper", [given])
"""


@pytest.mark.usefixtures("health")
def test_server_goes_on_when_a_caller_is_killed_amid_its_request(cheap: Server) -> None:
    before = slept(cheap)
    with subprocess.Popen([sys.executable, "-c", CALLER, cheap.grpc_url]) as caller:
        wait_until(lambda: slept(cheap) > before, "the request at work", 120)
        caller.kill()


BROKEN: dict[str, tuple[Any, str, str]] = {
    "no graph": (b"not a graph", AFFINE, "model file must be a graph|parsing failed"),
    "empty": (b"", AFFINE, "model file|Load model from"),
    "cut off": (
        affine().SerializeToString()[:-20],
        AFFINE,
        "model file must be a graph|Protobuf parsing failed",
    ),
    "missing": (None, AFFINE, "model file must exist|failed to stat file"),
    "no config": (affine(), "max_batch_size: many\n", "broken"),
    "another dtype": (affine(), AFFINE.replace("TYPE_FP32", "TYPE_INT64"), "x"),
    "another shape": (affine(), AFFINE.replace("[4]", "[5]"), "x"),
    "another name": (affine(), AFFINE.replace('"x"', '"z"'), "z"),
    "code that fails": ("raise ImportError('no such thing')", AFFINE, "no such thing"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_model_that_cannot_load_is_named_with_its_fault_and_others_serve(
    ordered: Server, control: ModelControl, fault: str, tmp_path: Path
) -> None:
    # Triton 2.51 keeps the first mebibyte of a Python model that failed to load until its own end.
    with healthy(ordered, shared_slack_bytes=1 << 20):
        fail_to_load(ordered, control, fault, tmp_path)


def fail_to_load(ordered: Server, control: ModelControl, fault: str, tmp_path: Path) -> None:
    content, config, said = BROKEN[fault]
    in_python = isinstance(content, str)
    version = write_model(
        ordered.config.repository,
        "broken",
        None if in_python else content,
        config,
        backend="python" if in_python else "onnxruntime",
    )
    if isinstance(content, str):
        (version / "model.py").write_text(content)
    try:
        with pytest.raises(NotReady, match=said) as caught:
            control.load("broken")
        assert "Traceback" not in str(caught.value)
    finally:
        version.parent.rename(tmp_path / "broken")
    with triton.InferenceServerClient(ordered.grpc_url) as client:
        assert not client.is_model_ready("broken")
        wait_until(client.is_server_ready, "the server ready as before", 60)


@pytest.mark.parametrize("name", ["..", "affine/../lookup", "/etc", "a\nb", "x" * 9999])
def test_order_for_a_name_that_leaves_the_repository_is_refused(ordered: Server, name: str) -> None:
    headers = {f"triton-grpc-protocol-{CONTROL_HEADER}": ordered.control_token}
    with (
        healthy(ordered, shared_slack_bytes=1 << 20, ready=False),
        triton.InferenceServerClient(ordered.grpc_url) as client,
        pytest.raises(InferenceServerException),
    ):
        client.load_model(name, headers=headers)


def test_answers_stay_right_while_models_are_loaded_anew_and_fail_to(
    ordered: Server, control: ModelControl
) -> None:
    version = write_model(ordered.config.repository, "changed", affine(), AFFINE)
    graph, good = version / "model.onnx", affine().SerializeToString()
    control.load("changed")
    done = threading.Event()

    def ask(_: int) -> int:
        count = 0
        with triton.InferenceServerClient(ordered.grpc_url) as client:
            while not done.is_set():
                for model in ("affine", "changed"):
                    np.testing.assert_array_equal(infer(client, model, x=ONES)["y"], 2 * ONES + 1)
                count += 1
        return count

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, number) for number in range(8)]
        try:
            for content in (good, b"not a graph", good, b"", good):
                graph.write_bytes(content)
                if content == good:
                    control.load("changed")
                else:
                    with pytest.raises(NotReady):
                        control.load("changed")
        finally:
            done.set()
        assert all(asked.result(120) for asked in asking)
    control.unload("changed")
    version.parent.rename(ordered.config.repository.parent / "changed")
    answer_well(ordered)


SLOW = """
import os, time
from pathlib import Path

class TritonPythonModel:
    def initialize(self, args):
        while not Path({gate!r}).exists():
            time.sleep(0.02)

    def execute(self, requests):
        return []
"""


def test_others_serve_and_a_model_is_not_ready_while_it_loads(
    ordered: Server, control: ModelControl, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    version = write_model(ordered.config.repository, "slow", None, AFFINE, backend="python")
    (version / "model.py").write_text(SLOW.format(gate=str(gate)))
    url = f"http://{ordered.http_url}/v2"
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(control.load, "slow")
        try:
            wait_until(lambda: "loading: slow:1" in ordered.log_text(), "the model loads", 60)
            for _ in range(3):
                assert httpx.get(f"{url}/health/live", timeout=60).status_code == 200
                assert httpx.get(f"{url}/models/slow/ready", timeout=60).status_code != 200
                answer_well(ordered)
        finally:
            gate.touch()
        loading.result(120)
    assert httpx.get(f"{url}/models/slow/ready", timeout=60).status_code == 200
    control.unload("slow")
    version.parent.rename(tmp_path / "slow")
    assert ordered.pid is not None
    pid = ordered.pid
    wait_until(lambda: "slow" not in stubs(pid).values(), "the end of its process", 120)


ONE = tensor("input", "x", "FP32", "[1]") + tensor("output", "y", "FP32", "[1]")
GREEDY = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.held = np.ones(os.path.exists({flag!r}) << 30, np.uint8)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        for x in inputs:
            np.ones(int(x.as_numpy()[0]), np.uint8)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]) for x in inputs]
"""


@pytest.fixture
def greedy(ordered: Server, control: ModelControl, tmp_path: Path) -> Iterator[Path]:
    """A model that takes as many bytes as a request says, unloaded; a file that has it take 1 GiB to load."""
    version = write_model(ordered.config.repository, "greedy", None, ONE, backend="python")
    (version / "model.py").write_text(GREEDY.format(flag=str(tmp_path / "flag")))
    with healthy(ordered, shared_slack_bytes=1 << 20):
        yield tmp_path / "flag"
        control.unload("greedy")
        version.parent.rename(tmp_path / "greedy")


def take(client: triton.InferenceServerClient, size_bytes: float) -> None:
    try:
        infer(client, "greedy", x=np.array([size_bytes], np.float32))
    except InferenceServerException as error:
        raise from_wire(error.message(), error.status()) from error


@pytest.mark.usefixtures("greedy")
def test_model_serves_again_when_the_kernel_kills_it_for_memory_at_work(
    ordered: Server, control: ModelControl
) -> None:
    control.load("greedy")
    assert ordered.pid is not None
    (pid,) = (pid for pid, model in stubs(ordered.pid).items() if model == "greedy")
    with (
        memory_group(256 << 20) as group,
        triton.InferenceServerClient(ordered.grpc_url) as client,
    ):
        group.add(pid)
        take(client, 1)
        with pytest.raises(NotReady, match="the model's process ended before it answered"):
            take(client, 1 << 30)
        assert group.kills == 1
        wait_until(lambda: restarted(ordered) == 1, "another start", 120)
        take(client, 1)


def test_others_serve_when_the_kernel_kills_a_model_for_memory_while_it_loads(
    ordered: Server, control: ModelControl, greedy: Path
) -> None:
    greedy.touch()
    assert ordered.pid is not None
    with memory_group(512 << 20) as group:
        group.add(ordered.pid)
        with pytest.raises(NotReady, match="greedy"):
            control.load("greedy")
        assert group.kills == 1
        ready = httpx.get(f"http://{ordered.http_url}/v2/models/greedy/ready", timeout=60)
        assert ready.status_code != 200
        answer_well(ordered)
        greedy.unlink()
        control.load("greedy")
        with triton.InferenceServerClient(ordered.grpc_url) as client:
            take(client, 1)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_caller_is_told_soon_and_may_ask_again_when_the_server_dies_amid_its_request(
    tmp_path: Path, protocol: str
) -> None:
    from server_fixtures import write_sleeper

    write_model(tmp_path / "models", "affine", affine(), AFFINE)
    write_sleeper(tmp_path / "models")
    with Server(any_port(tmp_path / "models")) as server, ThreadPoolExecutor(1) as pool:
        url = server.grpc_url if protocol == "grpc" else server.http_url
        ports = {f"{name}_port": server.config.ports[f"{name}_port"] for name in ("http", "grpc", "metrics")}
        with Client(url, protocol, retry=AT_ONCE) as client:
            asked = pool.submit(client.infer, "sleeper", seconds(300.0), 200.0)
            wait_until(lambda: slept(server) == 1, "the request at work", 60)
            began = time.monotonic()
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(SlipwayError) as caught:
                asked.result(100)
            assert time.monotonic() - began < 100, "it waited for its deadline"
            assert isinstance(caught.value, (NotReady, Unrecoverable))
            server.stop()
            with Server(replace(any_port(tmp_path / "models"), **ports)):
                np.testing.assert_array_equal(client.infer("affine", {"x": ONES})["y"], 2 * ONES + 1)
