"""What served graphs hold in memory: a graph's weights once, however many instances it has."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import numpy as np
import onnx
import psutil
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from server_fixtures import (
    ONE_INSTANCE,
    affine,
    any_port,
    graph,
    infer,
    infer_all,
    tensor,
    wait_until,
    write_model,
)
from tritonclient.utils import InferenceServerException

from slipway_serving.system.server_processes import process_ids
from slipway_serving.triton.server import Server

pytestmark = pytest.mark.long

WIDTH, LAYERS, INSTANCES = 2048, 14, 3
# As the CPU computes them: float16 products in float32.
WEIGHT_BYTES = LAYERS * WIDTH * WIDTH * 4
X = np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)


def products() -> onnx.ModelProto:
    """y = x @ w0 @ w1 ..., in float16."""
    random = np.random.default_rng(0)
    weights = {
        f"w{i}": (random.random((WIDTH, WIDTH), np.float32) / WIDTH).astype(np.float16) for i in range(LAYERS)
    }
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(LAYERS)]
    return graph(
        [
            helper.make_node("Cast", ["x"], ["x0"], to=TensorProto.FLOAT16),
            *nodes,
            helper.make_node("Cast", [f"x{LAYERS}"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": (TensorProto.FLOAT, ["batch", WIDTH])},
        {"y": (TensorProto.FLOAT, ["batch", WIDTH])},
        weights,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Triton with several instances of a graph of 235 MB in float32, and of one without weights."""
    repository = tmp_path_factory.mktemp("heavy")
    for name, model, width in (("heavy", products(), WIDTH), ("light", affine(), 4)):
        sides = tensor("input", "x", "FP32", f"[{width}]") + tensor("output", "y", "FP32", f"[{width}]")
        version = write_model(repository, name, model, f"max_batch_size: 2\n{sides}")
        config = version.parent / "config.pbtxt"
        several = ONE_INSTANCE.replace("count: 1", f"count: {INSTANCES}")
        config.write_text(config.read_text().replace(ONE_INSTANCE, several))
    with Server(any_port(repository)) as running:
        yield running


def stubs(server: Server, model: str) -> list[psutil.Process]:
    """Return the processes of a model's instances."""
    found = [psutil.Process(pid) for pid in process_ids(server.server_id)]
    return [each for each in found if any(re.fullmatch(rf"{model}(_\d+)+", part) for part in each.cmdline())]


def memory(server: Server, model: str) -> int:
    """Return what a model's instances hold together, bytes; shared pages count once."""
    return sum(process.memory_full_info().pss for process in stubs(server, model))


@pytest.mark.python_graphs
def test_instances_hold_the_weights_once(server: Server) -> None:
    with triton.InferenceServerClient(server.grpc_url) as client:
        answers = infer_all(client, "heavy", [{"x": X}] * (2 * INSTANCES))
        infer_all(client, "light", [{"x": X[:, :4]}] * (2 * INSTANCES))
    first = answers[0].as_numpy("y")
    assert np.isfinite(first).all()
    for answer in answers:
        np.testing.assert_array_equal(answer.as_numpy("y"), first)
    assert len(stubs(server, "heavy")) == len(stubs(server, "light")) == INSTANCES
    assert memory(server, "heavy") - memory(server, "light") <= 1.2 * WEIGHT_BYTES


@pytest.mark.python_graphs
def test_instance_that_is_left_serves_when_the_one_with_the_weights_is_killed(server: Server) -> None:
    holder = max(stubs(server, "heavy"), key=lambda process: process.memory_info().rss)
    os.kill(holder.pid, signal.SIGKILL)
    wait_until(lambda: holder.status() == psutil.STATUS_ZOMBIE, "the end of that process")
    with triton.InferenceServerClient(server.grpc_url) as client:

        def serves() -> bool:
            # Triton goes on giving requests to the process that is gone, and refuses those itself.
            try:
                return bool(np.isfinite(infer(client, "heavy", x=X)["y"]).all())
            except InferenceServerException as error:
                assert "not healthy" in str(error) or "ended" in str(error), error
                return False

        wait_until(serves, "an answer of an instance that is left")
