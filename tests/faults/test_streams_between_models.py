"""A stream of a model to a model leaves the heaps of both processes whole, however it ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from served_answers import stream
from server_fixtures import any_port, infer_input, tensor, write_model

from slipway_serving.system.server_processes import stubs
from slipway_serving.triton.server import Server

ADAPTER = """
import triton_python_backend_utils as pb_utils

from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
"""
TENSORS = "".join(
    [
        tensor("input", "x", "FP32", "[1]"),
        tensor("output", "y", "FP32", "[1]"),
        tensor("output", "unwanted", "FP32", "[4]"),
    ]
)


DECOUPLED = "model_transaction_policy { decoupled: true }\n"
MODELS = {"parts": DECOUPLED, "whole": "", "killing": DECOUPLED, "killed": ""}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("streaming") / "models"
    for name, more in MODELS.items():
        program = f"streaming_programs:{name.title()}"
        settings = f'parameters {{ key: "program" value {{ string_value: "{program}" }} }}\n'
        version = write_model(repository, name, None, TENSORS + more + settings, "python")
        (version / "model.py").write_text(ADAPTER)
        shutil.copy(Path(__file__).with_name("streaming_programs.py"), version)
    with Server(any_port(repository)) as running:
        yield running


def test_process_outlives_thousands_of_streams_that_python_lets_go_of_first(server: Server) -> None:
    before, streams = stubs(server.pid), 1000
    with triton.InferenceServerClient(server.grpc_url) as client:
        inputs = [infer_input("x", np.array([streams], np.float32))]
        answer = client.infer("whole", inputs, client_timeout=600)
    assert answer.as_numpy("y") == 30 * streams
    assert stubs(server.pid) == before


def test_model_goes_on_when_its_caller_died_before_the_last_response(server: Server) -> None:
    inputs = [infer_input("x", np.zeros(1, np.float32))]
    with triton.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(triton.InferenceServerException, match="not healthy|failed"):
            client.infer("killed", inputs, client_timeout=300)
        (answer,) = stream(client, "killing", {"x": np.zeros(1, np.float32)})
    assert answer["y"] == 1
