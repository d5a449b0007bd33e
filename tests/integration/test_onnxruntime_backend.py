"""The backend `onnxruntime` in a real Triton: what it computes, batches, completes and refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest
import tritonclient.grpc as triton
from server_fixtures import (
    affine,
    any_port,
    bfloat,
    echo,
    infer,
    infer_all,
    lookup,
    masked,
    overridable,
    scalar,
    tensor,
    timed,
    wait_until,
    write_model,
)
from tritonclient.utils import InferenceServerException

from slipway_serving.protocol.errors import InvalidRequest, NotReady, Unrecoverable, from_wire
from slipway_serving.system.server_processes import process_ids, shared_memory_regions
from slipway_serving.triton.control import CONTROL_HEADER
from slipway_serving.triton.server import Server

X4 = tensor("input", "x", "FP32", "[4]")
Y4 = tensor("output", "y", "FP32", "[4]")
BATCH_8 = "max_batch_size: 8\n"


def merging(rows: int) -> str:
    """Have requests wait until there are so many rows: they meet in one batch on a busy machine too."""
    return f"dynamic_batching {{ preferred_batch_size: [{rows}] max_queue_delay_microseconds: 3600000000 }}\n"


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def write_good_models(repository: Path) -> None:
    write_model(repository, "affine", affine(), BATCH_8 + X4 + Y4)
    write_model(repository, "merging", affine(), BATCH_8 + merging(6) + X4 + Y4)
    index, found = tensor("input", "index", "INT64", "[1]"), tensor("output", "y", "FP32", "[1]")
    write_model(repository, "lookup", lookup(), BATCH_8 + merging(3) + index + found)
    ids, mask = tensor("input", "ids", "INT64", "[-1]"), tensor("input", "mask", "INT64", "[-1]")
    write_model(
        repository,
        "masked",
        masked(),
        BATCH_8
        + "dynamic_batching { max_queue_delay_microseconds: 300000 }\n"
        + ids
        + mask
        + tensor("output", "y", "INT64", "[-1]"),
    )
    reshape = "reshape { shape: [] }"
    write_model(
        repository,
        "timed",
        timed(),
        "max_batch_size: 2\n"
        + tensor("input", "x", "FP32", "[-1]")
        + tensor("input", "timestep", "FP32", "[1]", reshape)
        + tensor("output", "y", "FP32", "[-1]")
        + tensor("output", "later", "FP32", "[1]", reshape),
    )
    write_model(repository, "completed", timed(), "")
    write_model(repository, "completed_scalar", scalar(), "")
    write_model(repository, "echo", echo(), "")
    write_model(
        repository,
        "optional",
        overridable(),
        tensor("input", "x", "FP32", "[-1]")
        + tensor("input", "gain", "FP32", "[1]", "optional: true")
        + tensor("output", "y", "FP32", "[-1]"),
    )
    write_model(
        repository,
        "tuned",
        affine(),
        BATCH_8
        + X4
        + Y4
        + parameter("inter_op_thread_count", "2")
        + parameter("execution_mode", "1")
        + parameter("enable_mem_arena", "false")
        + parameter("enable_mem_pattern", "0")
        + parameter("session.disable_prepacking", "1")
        + parameter("something_of_mine", "ignored")
        + "optimization { graph { level: 2 } }\n",
    )
    threads = 'parameters { key: "intra_op_thread_count" value { string_value: "7" } }\n'
    write_model(repository, "threads", affine(), BATCH_8 + X4 + Y4, parameters=threads)
    other = write_model(
        repository,
        "renamed",
        None,
        BATCH_8
        + X4
        + Y4
        + 'default_model_filename: "graph.onnx"\n'
        + parameter("memory.enable_memory_arena_shrinkage", "cpu:0"),
    )
    (other / "graph.onnx").write_bytes(affine().SerializeToString())
    (other / "notes").mkdir()
    (repository / "renamed" / "manifest.json").write_text("{}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    write_good_models(repository)
    with Server(any_port(repository)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc_url) as made:
        yield made


def batch_counts(client: triton.InferenceServerClient, model: str) -> tuple[int, int]:
    """Return how many rows a model has answered, and by how many executions."""
    stats = client.get_inference_statistics(model).model_stats[0]
    return stats.inference_count, stats.execution_count


def assert_one_batch(
    client: triton.InferenceServerClient, model: str, before: tuple[int, int], answered: int
) -> None:
    """Assert that one execution took so many further rows; Triton counts after it answers."""
    wanted = (before[0] + answered, before[1] + 1)
    wait_until(
        lambda: batch_counts(client, model) == wanted, f"{answered} rows of {model} count as one batch"
    )


def rows(count: int, start: float = 0.0) -> np.ndarray:
    return (np.arange(count * 4, dtype=np.float32) + np.float32(start)).reshape(count, 4)


def test_outputs_equal_onnxruntime_in_process(client: triton.InferenceServerClient) -> None:
    x = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    timestep = np.array([[0.5], [2.0]], np.float32)
    expected = ort.InferenceSession(timed().SerializeToString()).run(
        None, {"x": x[:2], "timestep": timestep[:, 0]}
    )
    got = infer(client, "timed", x=x[:2], timestep=timestep)
    np.testing.assert_array_equal(got["y"], expected[0])
    np.testing.assert_array_equal(got["later"], expected[1][:, None])


def test_nan_passes_unchanged(client: triton.InferenceServerClient) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0.0]], np.float32)
    np.testing.assert_array_equal(infer(client, "affine", x=x)["y"], 2 * x + 1)


def test_requests_run_as_one_batch_when_they_come_together(client: triton.InferenceServerClient) -> None:
    before = batch_counts(client, "merging")
    requests = [rows(1 + i % 2, 100 * i) for i in range(4)]
    answers = infer_all(client, "merging", [{"x": x} for x in requests])
    for x, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * x + 1)
    assert_one_batch(client, "merging", before, answered=sum(len(x) for x in requests))


def test_requests_of_other_lengths_are_answered_beside_each_other(
    client: triton.InferenceServerClient,
) -> None:
    requests = [np.arange(1, 2 + i)[None] for i in (3, 5, 3)]
    answers = infer_all(client, "masked", [{"ids": x, "mask": x} for x in requests])
    for x, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer.as_numpy("y"), x * x)


@pytest.mark.python_graphs
def test_refused_requests_leave_nothing_in_shared_memory(
    client: triton.InferenceServerClient, server: Server
) -> None:
    before = shared_mib(server)
    for _ in range(16):
        with pytest.raises(InferenceServerException, match="mask must"):
            infer(client, "masked", ids=np.zeros((1, 2**17), np.int64), mask=np.zeros((1, 2), np.int64))
    # Each has 1 MiB, which it keeps for as long as its error is in memory.
    assert shared_mib(server) - before < 4


def shared_mib(server: Server) -> float:
    return sum(region.stat().st_size for region in shared_memory_regions(server.server_id)) / 2**20


@pytest.mark.python_graphs
def test_only_the_bad_request_of_a_batch_fails(client: triton.InferenceServerClient, server: Server) -> None:
    before = batch_counts(client, "lookup")
    answers = infer_all(client, "lookup", [{"index": np.array([[i]])} for i in (0, 99, 3)])
    assert [answers[i].as_numpy("y").item() for i in (0, 2)] == [10.0, 13.0]
    assert isinstance(answers[1], InferenceServerException)
    error = from_wire(answers[1].message(), answers[1].status())
    assert isinstance(error, (InvalidRequest, Unrecoverable))
    assert str(error).startswith("lookup: the graph failed:")
    assert "Traceback" not in answers[1].message()
    assert_one_batch(client, "lookup", before, answered=3)
    assert "Traceback (most recent call last)" in server.log_text()


@pytest.mark.python_graphs
def test_inputs_that_differ_in_a_named_axis_are_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "masked", ids=np.ones((1, 5), np.int64), mask=np.ones((1, 1), np.int64))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    error = from_wire(caught.value.message())
    assert isinstance(error, InvalidRequest)
    assert str(error) == "masked: mask must have 5 for tokens as ids has, got 1"


def test_only_requested_outputs_are_answered(client: triton.InferenceServerClient) -> None:
    one = np.ones((1, 1), np.float32)
    assert list(infer(client, "timed", outputs=["later"], x=one, timestep=one)) == ["later"]


def test_config_is_completed_when_it_names_no_tensors(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("completed").config
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")
    assert {(i.name, tuple(i.dims), i.HasField("reshape")) for i in config.input} == {
        ("x", (-1,), False),
        ("timestep", (1,), True),
    }
    got = infer(client, "completed", x=np.ones((2, 3), np.float32), timestep=np.full((2, 1), 7, np.float32))
    np.testing.assert_array_equal(got["later"], [[8], [8]])


def test_scalar_is_completed_as_one_value(client: triton.InferenceServerClient) -> None:
    assert list(client.get_model_config("completed_scalar").config.input[0].dims) == [1]
    np.testing.assert_array_equal(infer(client, "completed_scalar", x=np.array([4], np.float32))["y"], [8])


@pytest.mark.python_graphs
def test_text_passes_unchanged(client: triton.InferenceServerClient) -> None:
    # Completed, "echo" batches along its only axis, so that each text is a row.
    text = np.array([["lake at sunset"], [""], ["湖\0x"]], np.object_)
    assert [item.decode() for item in infer(client, "echo", x=text)["y"].ravel()] == text.ravel().tolist()


@pytest.mark.python_graphs
def test_bytes_that_are_no_text_are_refused(client: triton.InferenceServerClient) -> None:
    text = np.array([[b"\xff\xfe"]], np.object_)
    with pytest.raises(InferenceServerException, match=r"\[INVALID_ARGUMENT\] echo: x must be UTF-8 text"):
        infer(client, "echo", x=text)


def test_optional_input_falls_back_to_the_initializer(client: triton.InferenceServerClient) -> None:
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(infer(client, "optional", x=x)["y"], [3, 3])
    gain = np.array([5], np.float32)
    np.testing.assert_array_equal(infer(client, "optional", x=x, gain=gain)["y"], [5, 5])


@pytest.mark.parametrize("model", ["tuned", "renamed"])
def test_model_serves_when_config_uses_options(client: triton.InferenceServerClient, model: str) -> None:
    np.testing.assert_array_equal(infer(client, model, x=rows(2))["y"], 2 * rows(2) + 1)


@pytest.mark.python_graphs
def test_threads_are_as_many_as_the_parameter_says(
    client: triton.InferenceServerClient, server: Server
) -> None:
    for model in ("affine", "threads"):
        infer(client, model, x=rows(1))
    # A session's pool has one thread less than asked for: the caller's thread works too.
    assert stub_threads(server, "threads_0") - stub_threads(server, "affine_0") == 7 - 1


def stub_threads(server: Server, instance: str) -> int:
    """Return how many threads the stub process of a model's instance has."""
    found = [psutil.Process(pid) for pid in process_ids(server.server_id)]
    (stub,) = (each for each in found if any(part.startswith(instance) for part in each.cmdline()))
    return stub.num_threads()


def test_wrong_shape_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "affine", x=np.ones((1, 5), np.float32))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


BAD: dict[str, tuple[onnx.ModelProto | bytes | None, str, str]] = {
    "wrong_type": (
        affine(),
        BATCH_8 + tensor("input", "x", "FP16", "[4]") + Y4,
        "input x must be TYPE_FP32 as in the graph, got TYPE_FP16",
    ),
    "wrong_dims": (
        affine(),
        BATCH_8 + tensor("input", "x", "FP32", "[5]") + tensor("output", "y", "FP32", "[-1]"),
        "input x must have dims [4] as in the graph, got [5] | "
        "output y must have dims [4] as in the graph, got [-1]",
    ),
    "wrong_rank": (
        affine(),
        BATCH_8 + tensor("input", "x", "FP32", "[2, 2]") + Y4,
        "input x must have dims [4] as in the graph, got [2, 2]",
    ),
    "wrong_names": (
        affine(),
        BATCH_8 + tensor("input", "z", "FP32", "[4]") + tensor("output", "w", "FP32", "[4]"),
        "input must be one of x, got z | input x must be in the config, got none | "
        "output must be one of y, got w",
    ),
    "not_batching": (
        affine(batch=3),
        BATCH_8 + X4 + Y4,
        "input x must have a dynamic first axis in the graph for max_batch_size 8, got [3, 4]",
    ),
    "not_batching_completed": (
        affine(batch=3),
        BATCH_8,
        "max_batch_size must be 0 for a graph",
    ),
    "half_given": (
        affine(),
        BATCH_8 + tensor("input", "x", "FP32", "[5]"),
        "input x must have dims [4] as in the graph, got [5]",
    ),
    "bad_threads": (
        affine(),
        BATCH_8 + X4 + Y4 + parameter("inter_op_thread_count", "two") + parameter("enable_mem_arena", "yes"),
        "parameter inter_op_thread_count must be a whole number, 0 or more, got 'two' | "
        "parameter enable_mem_arena must be 0, 1, false or true, got 'yes'",
    ),
    "bad_level": (
        affine(),
        BATCH_8 + X4 + Y4 + "optimization { graph { level: 7 } }\n",
        "optimization graph level must be -1, 0, 1 or 2, got 7",
    ),
    "bfloat": (
        bfloat(),
        tensor("input", "x", "FP32", "[-1]") + tensor("output", "y", "BF16", "[-1]"),
        "output y must have one of the types BOOL, FP16",
    ),
    "sequences": (
        affine(),
        BATCH_8 + X4 + Y4 + "sequence_batching { }\n",
        "sequence_batching must be absent",
    ),
    "accelerated": (
        affine(),
        BATCH_8
        + X4
        + Y4
        + 'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }\n',
        "cpu_execution_accelerator must be absent here, got openvino",
    ),
    "corrupt": (affine().SerializeToString()[:40], BATCH_8 + X4 + Y4, "/corrupt/1/model.onnx: "),
    "missing": (None, BATCH_8 + X4 + Y4, "model file must exist, got none at "),
    "unreadable": (affine(), "no_such_field: 1\n", "config.pbtxt cannot be read"),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the start of a server of all bad models says, by model."""
    repository = tmp_path_factory.mktemp("bad_repository")
    for name, (model, config, _) in BAD.items():
        write_model(repository, name, model, config)
    server = Server(any_port(repository))
    with pytest.raises(NotReady) as caught:
        server.start()
    shutil.rmtree(server.log_path.parent)
    first, *lines, last = str(caught.value).splitlines()
    assert (first, last) == (
        f"server: {len(BAD)} model(s) failed to load:",
        f"  log: {server.log_path}",
    )
    return dict(line.strip().split(": ", 1) for line in lines)


@pytest.mark.python_graphs
@pytest.mark.parametrize("model", BAD)
def test_load_fails_and_names_the_fault_when_config_or_graph_is_wrong(
    refusals: dict[str, str], model: str
) -> None:
    assert BAD[model][2] in refusals[model]


def test_good_model_serves_when_others_failed_to_load(tmp_path: Path) -> None:
    for name in ("corrupt", "unreadable", "wrong_type"):
        write_model(tmp_path, name, *BAD[name][:2])
    write_model(tmp_path, "good", affine(), BATCH_8 + X4 + Y4)
    with (
        Server(any_port(tmp_path, exit_on_error=False, model_control="explicit")) as server,
        triton.InferenceServerClient(server.grpc_url) as client,
    ):
        assert server.models() == ["good"]
        key = {f"triton-grpc-protocol-{CONTROL_HEADER}": server.control_token}
        index = client.get_model_repository_index(headers=key).models
        assert {entry.name: entry.state for entry in index} == {
            "good": "READY",
            "corrupt": "UNAVAILABLE",
            "wrong_type": "UNAVAILABLE",
            "unreadable": "",  # Triton could not even read which versions it has
        }
        np.testing.assert_array_equal(infer(client, "good", x=rows(1))["y"], 2 * rows(1) + 1)


def test_gpu_is_refused_when_onnxruntime_has_none() -> None:
    from slipway_serving.runtime.backends.onnxruntime import session  # needs onnxruntime, not a server

    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(InvalidRequest, match=r"m: instance_group kind must be KIND_CPU .* got KIND_GPU"):
        session.providers({"name": "m"}, "GPU", 0)
