"""The parts of the backend `onnxruntime` that need no Triton: execution of a batch, options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from slipway_serving.protocol.errors import Cancelled, InvalidRequest, Overloaded, SlipwayError, Unrecoverable
from slipway_serving.runtime.backends.onnxruntime import session
from slipway_serving.runtime.backends.onnxruntime.execution import Executor, GraphRequest
from slipway_serving.runtime.backends.onnxruntime.signature import GraphTensor, Signature

SIGNATURE = Signature(
    inputs={"x": GraphTensor("x", "tensor(float)", ("batch", 2))},
    overridable={},
    outputs={"y": GraphTensor("y", "tensor(float)", ("batch", 2))},
)


def executor(run: Any, *, batched: bool = True) -> Executor:
    return Executor("m", SIGNATURE, run, {"y": [2]}, batched=batched, ranges={"batch": (1, 4)})


def request(value: float, *, rows: int = 1, cancelled: bool = False) -> GraphRequest:
    return GraphRequest({"x": np.full((rows, 2), value, np.float32)}, ("y",), lambda: cancelled)


def double(wanted: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    return [2 * inputs["x"]]


def test_cancelled_request_does_not_run_and_disturbs_no_other() -> None:
    seen: list[int] = []

    def run(wanted: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        seen.append(len(inputs["x"]))
        return double(wanted, inputs)

    answers = executor(run).execute([request(1), request(2, cancelled=True), request(3, rows=2)])
    assert isinstance(answers[1], Cancelled)
    assert [a["y"].tolist() for a in answers if not isinstance(a, SlipwayError)] == [[[2, 2]], [[6, 6]] * 2]
    assert seen == [3]


def test_size_outside_an_axis_is_refused_before_the_graph_runs() -> None:
    seen: list[int] = []

    def run(wanted: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        seen.append(len(inputs["x"]))
        return double(wanted, inputs)

    answers = executor(run, batched=False).execute([request(1, rows=5), request(2, rows=4)])
    assert isinstance(answers[0], InvalidRequest)
    assert str(answers[0]) == "m: x must have 1 to 4 for batch, the exported range, got 5"
    assert seen == [4]


def test_requests_run_alone_when_the_model_does_not_batch() -> None:
    sizes: list[int] = []

    def run(wanted: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        sizes.append(len(inputs["x"]))
        return double(wanted, inputs)

    executor(run, batched=False).execute([request(1), request(2)])
    assert sizes == [1, 1]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (MemoryError(), Overloaded),
        (
            RuntimeError("Failed to allocate memory for requested buffer of size 99\nat allocator.cc"),
            Overloaded,
        ),
        (RuntimeError("Gather: index out of bounds\nat gather.cc"), Unrecoverable),
        (type("InvalidArgument", (Exception,), {})("Invalid rank for input"), InvalidRequest),
    ],
)
def test_failure_of_the_graph_is_told_in_one_line(raised: Exception, expected: type[SlipwayError]) -> None:
    def run(wanted: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        raise raised

    (answer,) = executor(run).execute([request(1)])
    assert type(answer) is expected
    assert answer.__cause__ is raised
    assert "\n" not in str(answer)


def test_output_without_the_batch_is_an_error_of_each_request() -> None:
    one = np.zeros((1, 2), np.float32)
    answers = executor(lambda wanted, inputs: [one]).execute([request(1), request(2)])
    # The batch of two fails; alone, each has an output of the size that it must have.
    assert all(not isinstance(answer, SlipwayError) for answer in answers)
    (answer,) = executor(lambda wanted, inputs: [one]).execute([request(1, rows=2)])
    assert isinstance(answer, Unrecoverable)
    assert str(answer) == "m: output y must have batch size 2, got shape [1, 2]"


def test_wrong_rank_and_missing_input_are_named() -> None:
    bad = [
        GraphRequest({"x": np.zeros((1, 2, 1), np.float32)}, ("y",), lambda: False),
        GraphRequest({}, ("y",), lambda: False),
    ]
    first, second = executor(double).execute(bad)
    assert str(first) == "m: x must have shape [-1, 2], got [1, 2, 1]"
    assert str(second) == "m: x must be given, got none"


def parameters(**values: str) -> dict[str, Any]:
    return {"name": "m", "parameters": {key: {"string_value": value} for key, value in values.items()}}


def test_cuda_options_are_those_of_the_cpp_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.ort, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    config = parameters(cudnn_conv_algo_search="1", gpu_mem_limit="1000", arena_extend_strategy="1")
    accelerator = {"name": "cuda", "parameters": {"use_tf32": "0"}}
    config["optimization"] = {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}
    (name, options), _ = session.providers(config, "GPU", 3)
    assert name == "CUDAExecutionProvider"
    assert options == {
        "device_id": "3",
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "1000",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
    }


@pytest.mark.parametrize(("accelerators", "tf32"), [([], "0"), ([{"use_tf32": "1"}], "1")])
def test_float32_is_not_rounded_to_tf32_unless_the_config_says_so(
    accelerators: list[dict[str, str]], tf32: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.ort, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    entries = [{"name": "cuda", "parameters": given} for given in accelerators]
    config = parameters() | {
        "optimization": {"execution_accelerators": {"gpu_execution_accelerator": entries}}
    }
    (_, options), _ = session.providers(config, "GPU", 0)
    assert options == {"device_id": "0", "use_tf32": tf32}


@pytest.mark.parametrize("value", ["-1", "2.0", "", "²", "1 2"])
def test_thread_count_must_be_a_whole_number(value: str) -> None:
    with pytest.raises(InvalidRequest, match="m: parameter intra_op_thread_count must be a whole number"):
        session.session_options(parameters(intra_op_thread_count=value))


def test_options_carry_what_the_parameters_say() -> None:
    options = session.session_options(
        parameters(intra_op_thread_count="3", enable_mem_arena="false", **{"session.disable_prepacking": "1"})
    )
    assert options.intra_op_num_threads == 3
    assert options.enable_cpu_mem_arena is False
    assert options.enable_mem_pattern is True
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    assert options.graph_optimization_level == session.ort.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({"session.intra_op.allow_spinning": "1"}, "1")])
def test_threads_of_a_graph_do_not_spin_unless_its_config_says_so(
    given: dict[str, str], expected: str
) -> None:
    options = session.session_options(parameters(**given))
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == expected


@pytest.mark.parametrize(
    ("given", "shrunk"),
    [
        ({}, "cpu:0"),
        ({"memory.enable_memory_arena_shrinkage": "cpu:0;gpu:0"}, "cpu:0;gpu:0"),
        # ONNX Runtime refuses to shrink an arena that is not there.
        ({"enable_mem_arena": "0"}, ""),
    ],
)
def test_arena_shrinks_after_each_run_unless_there_is_none(given: dict[str, str], shrunk: str) -> None:
    options = session.run_options(parameters(**given))
    key = "memory.enable_memory_arena_shrinkage"
    if shrunk:
        assert options.get_run_config_entry(key) == shrunk
    else:
        with pytest.raises(RuntimeError):
            options.get_run_config_entry(key)
