"""Tiny ONNX graphs, a repository writer and requests, shared by the tests of the server and its backend."""

from __future__ import annotations

import json
import queue
import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import tritonclient.grpc as triton
from onnx import TensorProto, helper

from slipway_serving.system.server_processes import process_ids, shared_memory_regions
from slipway_serving.triton.server import Server, ServerConfig

OPSET = 18
# A shell executes, splits or refuses each of these; two are not of ASCII.
ODD = "a b (1) & 'q' \"d\" $(touch RAN) `touch RAN` ; * é 動画"


def graph(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[int | str]]],
    outputs: Mapping[str, tuple[int, list[int | str]]],
    constants: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """Return a model of a few nodes; tensors are given as name -> (type, shape)."""
    made = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, *spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, *spec) for name, spec in outputs.items()],
        [onnx.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def affine(width: int = 4, batch: int | str = "batch") -> onnx.ModelProto:
    """y = 2 x + 1, x [batch, width]."""
    return graph(
        [helper.make_node("Mul", ["x", "two"], ["twice"]), helper.make_node("Add", ["twice", "one"], ["y"])],
        {"x": (TensorProto.FLOAT, [batch, width])},
        {"y": (TensorProto.FLOAT, [batch, width])},
        {"two": np.array(2, np.float32), "one": np.array(1, np.float32)},
    )


def masked() -> onnx.ModelProto:
    """y = ids * mask, both [batch, tokens]."""
    shape: list[int | str] = ["batch", "tokens"]
    return graph(
        [helper.make_node("Mul", ["ids", "mask"], ["y"])],
        {"ids": (TensorProto.INT64, shape), "mask": (TensorProto.INT64, shape)},
        {"y": (TensorProto.INT64, shape)},
    )


def timed() -> onnx.ModelProto:
    """y = x * timestep, later = timestep + 1; timestep is [batch] in the graph."""
    return graph(
        [
            helper.make_node("Unsqueeze", ["timestep", "last"], ["column"]),
            helper.make_node("Mul", ["x", "column"], ["y"]),
            helper.make_node("Add", ["timestep", "one"], ["later"]),
        ],
        {"x": (TensorProto.FLOAT, ["batch", "width"]), "timestep": (TensorProto.FLOAT, ["batch"])},
        {"y": (TensorProto.FLOAT, ["batch", "width"]), "later": (TensorProto.FLOAT, ["batch"])},
        {"last": np.array([1]), "one": np.array(1, np.float32)},
    )


def lookup() -> onnx.ModelProto:
    """y = table[index], index [batch, 1]; an index beyond 3 fails the run."""
    return graph(
        [helper.make_node("Gather", ["table", "index"], ["y"])],
        {"index": (TensorProto.INT64, ["batch", 1])},
        {"y": (TensorProto.FLOAT, ["batch", 1])},
        {"table": np.array([10, 11, 12, 13], np.float32)},
    )


def echo(kind: int = TensorProto.STRING) -> onnx.ModelProto:
    """y = x, x [n]."""
    return graph([helper.make_node("Identity", ["x"], ["y"])], {"x": (kind, ["n"])}, {"y": (kind, ["n"])})


def scalar() -> onnx.ModelProto:
    """y = x + x, both without axes."""
    return graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        {"x": (TensorProto.FLOAT, [])},
        {"y": (TensorProto.FLOAT, [])},
    )


def overridable() -> onnx.ModelProto:
    """y = x * gain; gain is an initializer (3) that is also an input."""
    return graph(
        [helper.make_node("Mul", ["x", "gain"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n"]), "gain": (TensorProto.FLOAT, [1])},
        {"y": (TensorProto.FLOAT, ["n"])},
        {"gain": np.array([3], np.float32)},
    )


def bfloat() -> onnx.ModelProto:
    """y = x as bfloat16, which Triton's Python backend cannot carry."""
    return graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)],
        {"x": (TensorProto.FLOAT, ["n"])},
        {"y": (TensorProto.BFLOAT16, ["n"])},
    )


ONE_THREAD = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
ONE_INSTANCE = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"


def tensor(side: str, name: str, kind: str, dims: str, more: str = "") -> str:
    """Return a tensor's entry of a config."""
    return f'{side} [ {{ name: "{name}" data_type: TYPE_{kind} dims: {dims} {more} }} ]\n'


def write_model(
    repository: Path,
    name: str,
    model: onnx.ModelProto | bytes | None,
    config: str,
    backend: str = "onnxruntime",
    parameters: str = ONE_THREAD,
) -> Path:
    """Write a model of the `onnxruntime` backend (or another) into a repository."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    if model is not None:
        data = model if isinstance(model, bytes) else model.SerializeToString()
        (version / "model.onnx").write_bytes(data)
    text = f'backend: "{backend}"\n{ONE_INSTANCE}{config}'
    (repository / name / "config.pbtxt").write_text(text + (parameters if backend == "onnxruntime" else ""))
    return version


SLEEPER = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "seconds")
            pb_utils.Logger.log_info("sleeping")
            time.sleep(float(seconds.as_numpy()[0]))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("slept", seconds.as_numpy())]))
        return responses
"""


def write_sleeper(repository: Path) -> None:
    """Write a python model that sleeps for as many seconds as it is told."""
    config = tensor("input", "seconds", "FP32", "[1]") + tensor("output", "slept", "FP32", "[1]")
    version = write_model(repository, "sleeper", None, config, backend="python")
    (version / "model.py").write_text(SLEEPER)


def any_port(repository: Path, **changes: Any) -> ServerConfig:
    """Return a config of free ports and short limits."""
    limits: dict[str, Any] = {"exit_timeout_s": 10, "ready_timeout_s": 300.0}
    return ServerConfig(repository, http_port=0, grpc_port=0, metrics_port=0, **{**limits, **changes})


_DTYPES = {
    "object": "BYTES",
    "float32": "FP32",
    "int64": "INT64",
    "float64": "FP64",
    "int32": "INT32",
    "uint8": "UINT8",
    "bool": "BOOL",
}


def infer_input(name: str, array: np.ndarray) -> triton.InferInput:
    """Return a request's input."""
    made = triton.InferInput(name, list(array.shape), _DTYPES[str(array.dtype)])
    made.set_data_from_numpy(array)
    return made


def infer(
    client: triton.InferenceServerClient, model: str, outputs: list[str] | None = None, **arrays: np.ndarray
) -> dict[str, np.ndarray]:
    """Call a model and return its outputs by name."""
    wanted = [triton.InferRequestedOutput(name) for name in outputs] if outputs else None
    inputs = [infer_input(name, array) for name, array in arrays.items()]
    result = client.infer(model, inputs, outputs=wanted, client_timeout=300)
    return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def infer_all(
    client: triton.InferenceServerClient, model: str, requests: list[dict[str, np.ndarray]]
) -> list[Any]:
    """Send all requests at once; return their results or errors in order."""
    answers: queue.Queue[tuple[int, Any]] = queue.Queue()

    def answer(index: int) -> Callable[[Any, Any], None]:
        return lambda result, error: answers.put((index, error if error is not None else result))

    for index, arrays in enumerate(requests):
        inputs = [infer_input(name, array) for name, array in arrays.items()]
        client.async_infer(model, inputs, callback=answer(index))
    got = dict(answers.get(timeout=300) for _ in requests)
    return [got[index] for index in range(len(requests))]


def metric(server: Server, name: str, model: str) -> float | None:
    """Return a gauge of ours that is counted for each model; None where it is not there."""
    page = httpx.get(server.metrics_url, trust_env=False).text
    found = re.search(rf'^{name}{{model="{model}"}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else None


def mode(path: Path) -> int:
    """Return the permissions of a file."""
    return stat.S_IMODE(path.lstat().st_mode)


def nothing_is_left(server_id: str) -> bool:
    folders = [path for place in ("/tmp", "/dev/shm") for path in Path(place).glob(f"{server_id}*")]
    return not (
        process_ids(server_id) or shared_memory_regions(server_id) or [f for f in folders if f.is_dir()]
    )


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 600.0) -> None:
    """Poll a condition; fail naming it when the time is over, which is meant for busy machines too."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


def loading_warnings(log: str) -> list[str]:
    """Return what Triton and ONNX Runtime complain of while models load, from the log of a started server."""
    loading, started, _ = log.partition("Started GRPCInferenceService")
    assert started
    # Triton on a machine without a GPU says so in these two.
    no_gpu = ("pinned_memory_manager", "DCGM unable to start")
    return [
        line
        for line in loading.splitlines()
        if (line.startswith("W") and not any(notice in line for notice in no_gpu))
        or "Removing initializer" in line
    ]


def logged(server: Server, module: str) -> list[dict[str, Any]]:
    """Return what a module of ours wrote to the log as JSON, line by line."""
    # The last line may be half written.
    whole, _, _ = server.log_text().rpartition("\n")
    return [json.loads(json.loads(line)) for line in re.findall(rf'{module}\.py:\d+\] (".*")', whole)]
