"""A repository of models whose processes die, and what tests ask of the server that heals them."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from server_fixtures import (
    ONE_INSTANCE,
    affine,
    infer_input,
    logged,
    tensor,
    wait_until,
    write_model,
)

from slipway_serving.protocol.errors import SlipwayError, from_wire
from slipway_serving.system.server_processes import SHARED_MEMORY, stubs
from slipway_serving.triton.server import Server

TENSORS = tensor("input", "x", "FP32", "[1]") + tensor("output", "y", "FP32", "[1]")
GRAPH = "max_batch_size: 8\n" + tensor("input", "x", "FP32", "[4]") + tensor("output", "y", "FP32", "[4]")
ONES = np.ones((1, 4), np.float32)
# y = 2 x + 1, as the graph has it, in a process of its own whatever runs graphs.
AFFINE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", 2 * x + 1)]) for x in given]
"""
ADAPTER = """
import triton_python_backend_utils as pb_utils

from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
"""
# A model that is not ours, and ends at its start where a file is there.
FRAGILE = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        if os.path.exists({flag!r}):
            os._exit(3)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]) for x in inputs]
"""


def server_id_of(pid: int) -> str:
    """Return the ID of the server that a process has started."""
    names = [path.name for path in SHARED_MEMORY.glob(f"slipway-{pid}-*")]
    (found,) = {match[0] for name in names if (match := re.match(r"slipway-\d+-\w+-", name))}
    return found


def write_affine(repository: Path) -> None:
    """Write a Python model that computes 2 x + 1."""
    version = write_model(repository, "affine", None, GRAPH, backend="python")
    (version / "model.py").write_text(AFFINE)


def write_models(repository: Path, flag: Path) -> None:
    """Write two models that hold sessions, a pipeline and an ensemble on the first, and other kinds."""
    parameters = {"max_sessions": "4", "session_idle_s": "3600", "gate": str(flag.with_name("gate"))}
    for name, program, more in (
        ("sum", "Sum", ""),
        ("other", "Sum", ""),
        ("failing", "Failing", ""),
        ("failing_together", "FailingTogether", ""),
        ("pipeline", "Pipeline", "model_transaction_policy { decoupled: true }\n"),
        ("gated", "Gated", "model_transaction_policy { decoupled: true }\n"),
    ):
        settings = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
            for key, value in (parameters | {"program": f"dying_programs:{program}"}).items()
        )
        version = write_model(repository, name, None, TENSORS + more + settings, "python")
        (version / "model.py").write_text(ADAPTER)
        shutil.copy(Path(__file__).with_name("dying_programs.py"), version)
    fragile = write_model(repository, "fragile", None, TENSORS, "python")
    (fragile / "model.py").write_text(FRAGILE.format(flag=str(flag)))
    for name in ("fragile", "gated"):
        config = repository / name / "config.pbtxt"
        two = config.read_text().replace(ONE_INSTANCE, ONE_INSTANCE.replace("count: 1", "count: 2"))
        config.write_text(two)
    write_model(repository, "graph", affine(), GRAPH)
    step = (
        'model_name: "sum" model_version: -1 input_map { key: "x" value: "x" }'
        ' output_map { key: "y" value: "y" }'
    )
    (repository / "ensemble" / "1").mkdir(parents=True)
    (repository / "ensemble" / "config.pbtxt").write_text(
        f'platform: "ensemble"\n{TENSORS}ensemble_scheduling {{ step [ {{ {step} }} ] }}\n'
    )


def call(client: triton.InferenceServerClient, model: str, x: float, **turn: Any) -> float:
    """Ask a model; raise its error as our clients do."""
    try:
        result = client.infer(
            model, [infer_input("x", np.array([x], np.float32))], client_timeout=300, **turn
        )
    except triton.InferenceServerException as error:
        raise from_wire(error.message(), error.status()) from error
    return float(result.as_numpy("y")[0])


Got = list[float | SlipwayError]


def stream(server: Server, x: float, model: str = "pipeline", into: Got | None = None) -> Got:
    """Ask a model that streams; return its answers and its error, put `into` a list as they come."""
    got: Got = [] if into is None else into

    def take(result: Any, error: Any) -> None:
        got.append(float(result.as_numpy("y")[0]) if error is None else from_wire(str(error)))

    with triton.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(take)
        client.async_stream_infer(model, [infer_input("x", np.array([x], np.float32))])
        # Where a process died before its first answer, an error is all that comes.
        wait_until(
            lambda: len(got) == 2 or any(isinstance(each, SlipwayError) for each in got),
            f"the answers of {model}",
        )
    return got


def pids_of(server: Server, model: str) -> set[int]:
    """Return the processes of a model's instances."""
    assert server.pid is not None
    return {pid for pid, name in stubs(server.pid).items() if name == model}


def pid_of(server: Server, model: str) -> int:
    """Return the process of an instance of a model."""
    return min(pids_of(server, model))


def events(server: Server) -> list[dict[str, Any]]:
    """What the supervisor wrote to the log, in order."""
    return logged(server, "supervision")


def restarts(server: Server, model: str) -> int:
    """How often a model was started anew."""
    return sum(told["event"] == "model_restarted" and told["model"] == model for told in events(server))


@contextlib.contextmanager
def healed(server: Server, model: str) -> Iterator[None]:
    """Wait, after a block in which a process of a model dies, until it was started anew."""
    before = restarts(server, model)
    yield
    wait_until(lambda: restarts(server, model) > before, f"another start of {model}")
