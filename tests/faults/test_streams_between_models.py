"""A stream of a model to a model leaves the heaps of both processes whole, however it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from server_fixtures import any_port, infer_input, tensor, write_model

from slipway_serving.server import Server
from slipway_serving.triton_process import stubs

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


def test_process_outlives_thousands_of_streams_that_python_lets_go_of_first(tmp_path: Path) -> None:
    for name, more in (("parts", "model_transaction_policy { decoupled: true }\n"), ("whole", "")):
        settings = (
            f'parameters {{ key: "program" value {{ string_value: "streaming_programs:{name.title()}" }} }}\n'
        )
        version = write_model(tmp_path / "models", name, None, TENSORS + more + settings, "python")
        (version / "model.py").write_text(ADAPTER)
        shutil.copy(Path(__file__).with_name("streaming_programs.py"), version)
    with (
        Server(any_port(tmp_path / "models")) as server,
        triton.InferenceServerClient(server.grpc_url) as client,
    ):
        before = stubs(server.pid)
        streams = 1000
        inputs = [infer_input("x", np.array([streams], np.float32))]
        answer = client.infer("whole", inputs, client_timeout=600)
        assert answer.as_numpy("y") == 30 * streams
        assert stubs(server.pid) == before
