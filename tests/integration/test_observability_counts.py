"""Counts of a small model in the metrics, which go on when the model is loaded anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from observability_fixtures import value
from server_fixtures import any_port, infer_input, tensor, wait_until, write_model

from slipway_serving.triton.control import ModelControl
from slipway_serving.triton.server import Server

ECHO = """
class Echo:
    reports_requests = False

    def __init__(self, settings):
        pass

    def run(self, call):
        yield {"y": call.tensors["x"]}

    def close(self):
        pass
"""
MODEL = """
import triton_python_backend_utils as pb_utils
from slipway_serving.adapter import model_class

TritonPythonModel = model_class(pb_utils)
"""


def test_counts_go_on_when_a_model_is_loaded_anew(tmp_path: Path) -> None:
    config = tensor("input", "x", "FP32", "[1]") + tensor("output", "y", "FP32", "[1]")
    config += 'parameters { key: "program" value { string_value: "echo_program:Echo" } }\n'
    folder = write_model(tmp_path / "models", "echo", None, config, backend="python")
    (folder / "echo_program.py").write_text(ECHO)
    (folder / "model.py").write_text(MODEL)
    x = infer_input("x", np.ones(1, np.float32))
    anew = any_port(tmp_path / "models", model_control="explicit")
    with Server(anew) as server, triton.InferenceServerClient(server.grpc_url) as client:
        control = ModelControl(server.http_url, server.control_token, load_timeout_s=30)
        for count in (1, 2):
            client.infer("echo", [x], client_timeout=30)
            wait_until(
                lambda count=count: value(server, "slipway_requests_total", model="echo", code="OK") == count,
                f"{count} requests in the metrics",
            )
            if count == 1:
                (folder / "model.py").touch()
                control.load("echo")
