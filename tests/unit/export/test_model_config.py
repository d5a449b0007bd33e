"""Configurations from descriptions: dimensions, batches, warm-ups, and an authored model's tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from google.protobuf import text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.repository.config import authored_config, config_text, model_config
from slipway_export.repository.publish import add_canceller, stage_authored
from slipway_export.sizing.threads import graph_threads
from slipway_export.spec import (
    AuthoredModel,
    Axis,
    Component,
    DType,
    Engine,
    Precision,
    TensorSpec,
    Tolerance,
)
from slipway_serving.protocol.cancellation import CancelRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.protocol.events import Event, output_field
from slipway_serving.protocol.fields import BATCH, Array
from slipway_serving.protocol.requests import Request
from slipway_serving.protocol.rules import within

NET = Component(
    "net",
    (
        TensorSpec("x", DType.FLOAT32, ("batch", "rows", 4)),
        TensorSpec("mask", DType.INT64, ("batch", "rows")),
        TensorSpec("scale", DType.FLOAT16, ("batch",)),
    ),
    (TensorSpec("y", DType.FLOAT32, ("batch", "2 * rows")),),
    (Axis("batch", 1, 2, 8), Axis("rows", 3, 5, 7)),
    lambda *_: None,  # type: ignore[arg-type, return-value]
    {Precision.FP32: Tolerance(1e-3, 1e-4, 0.9999)},
)


OWN = {"axes": "batch=1:8 rows=3:7", "memory.enable_memory_arena_shrinkage": "cpu:0"}
"""Parameters of every configuration for ONNX Runtime."""


def config_of(component: Component) -> pb.ModelConfig:
    made = model_config(component, "family_net", Engine.ONNXRUNTIME)
    return text_format.Parse(config_text(made), pb.ModelConfig())


def parameters_of(config: pb.ModelConfig) -> dict[str, str]:
    return {name: value.string_value for name, value in config.parameters.items()}


def test_configuration_leaves_the_batch_out_when_every_tensor_begins_with_it() -> None:
    config = config_of(NET)
    assert (config.name, config.backend, config.max_batch_size) == (
        "family_net",
        Engine.ONNXRUNTIME.backend,
        8,
    )
    assert [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in config.input] == [
        ("x", pb.TYPE_FP32, [-1, 4]),
        ("mask", pb.TYPE_INT64, [-1]),
        ("scale", pb.TYPE_FP16, [1]),
    ]
    # A tensor of the batch alone travels as [batch, 1].
    assert [tensor.HasField("reshape") for tensor in config.input] == [False, False, True]
    assert list(config.input[2].reshape.shape) == []
    (output,) = config.output
    assert (output.name, output.data_type, list(output.dims)) == ("y", pb.TYPE_FP32, [-1])
    (group,) = config.instance_group
    assert (group.count, group.kind) == (1, pb.ModelInstanceGroup.KIND_AUTO)
    assert not config.HasField("dynamic_batching")
    assert parameters_of(config) == OWN
    assert parameters_of(model_config(NET, "family_net", Engine.TENSORRT)) == {"axes": OWN["axes"]}
    assert not config.HasField("response_cache")
    assert config_of(replace(NET, cached=True)).response_cache.enable


def test_warmup_has_the_opt_sizes_and_zeros_for_whole_numbers() -> None:
    (warmup,) = config_of(NET).model_warmup
    assert (warmup.name, warmup.batch_size) == ("opt", 2)
    found = {
        name: (tensor.data_type, list(tensor.dims), tensor.random_data, tensor.zero_data)
        for name, tensor in warmup.inputs.items()
    }
    assert found == {
        "x": (pb.TYPE_FP32, [5, 4], True, False),
        "mask": (pb.TYPE_INT64, [5], False, True),
        "scale": (pb.TYPE_FP16, [1], True, False),
    }


def test_configuration_has_every_dimension_when_a_tensor_has_no_batch() -> None:
    unbatched = replace(NET, outputs=(TensorSpec("y", DType.INT32, ("2 * rows", 3)),))
    config = config_of(replace(unbatched, merge_us=None))
    assert config.max_batch_size == 0
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [
        [-1, -1, 4],
        [-1, -1],
        [-1],
        [-1, 3],
    ]
    assert not any(tensor.HasField("reshape") for tensor in (*config.input, *config.output))
    (warmup,) = config.model_warmup
    assert warmup.batch_size == 1
    assert {name: list(tensor.dims) for name, tensor in warmup.inputs.items()} == {
        "x": [2, 5, 4],
        "mask": [2, 5],
        "scale": [2],
    }


def test_axis_of_one_size_is_a_fixed_dimension() -> None:
    fixed = replace(NET, axes=(Axis("batch", 1, 2, 8), Axis("rows", 5, 5, 5)))
    config = config_of(fixed)
    assert [list(tensor.dims) for tensor in config.input] == [[5, 4], [5], [1]]
    assert list(config.output[0].dims) == [10]


def test_requests_are_merged_and_limited_when_the_component_says_so() -> None:
    merged = config_of(replace(NET, merge_us=1500)).dynamic_batching
    assert (merged.max_queue_delay_microseconds, list(merged.preferred_batch_size)) == (1500, [])
    some = config_of(replace(NET, merge_us=1500, merge_rows=4)).dynamic_batching
    assert list(some.preferred_batch_size) == [4]
    limited = config_of(replace(NET, queue_limit=16, queue_limit_with=("other", "more")))
    assert parameters_of(limited) == {**OWN, "queue_limit": "16", "queue_limit_with": "other more"}
    assert parameters_of(config_of(replace(NET, queue_limit=16))) == {**OWN, "queue_limit": "16"}


@dataclass(frozen=True)
class Answer(Event):
    """What the model below answers with."""

    label: Annotated[str, output_field("a text")]
    values: Annotated[NDArray[np.float32], Array("float32", (BATCH, "rows", 2), "numbers")]


@dataclass(frozen=True)
class Batch(Request):
    """What the model below takes."""

    model: ClassVar[str] = "batches"
    events: ClassVar[tuple[type[Event], ...]] = (Answer,)

    x: Annotated[NDArray[np.float32], Array("float32", (BATCH, "rows"), "numbers", ragged=True)]
    y: Annotated[NDArray[np.float32], Array("float32", (BATCH, "rows"), "numbers")]
    steps: Annotated[int, within(1, 9, "steps")] = 3


@dataclass(frozen=True)
class Piece(Request):
    """What a turn of the session below brings."""

    model: ClassVar[str] = "pieces"

    x: Annotated[NDArray[np.float32], Array("float32", (BATCH, "rows"), "numbers")]


@dataclass(frozen=True)
class Opening(Batch):
    """A request that opens a session."""

    turn: ClassVar[type[Request] | None] = Piece


def authored(text: str, request: type[Request], events: Any = (Answer,)) -> pb.ModelConfig:
    written = authored_config(text, request, events)
    assert written.startswith(text.rstrip())
    return text_format.Parse(written, pb.ModelConfig())


def tensors_of(config: pb.ModelConfig) -> list[tuple[Any, ...]]:
    return [
        (tensor.name, tensor.data_type, list(tensor.dims), tensor.optional, tensor.allow_ragged_batch)
        for tensor in config.input
    ]


def test_authored_model_has_the_tensors_of_its_request_and_its_events() -> None:
    config = authored('name: "net"\nmax_batch_size: 4\ndynamic_batching { }\n', Batch)
    assert tensors_of(config) == [
        ("x", pb.TYPE_FP32, [-1], False, True),
        ("y", pb.TYPE_FP32, [-1], False, False),
        ("steps", pb.TYPE_INT64, config.input[2].dims, True, False),
    ]
    assert [(tensor.name, tensor.data_type) for tensor in config.output] == [
        ("label", pb.TYPE_STRING),
        ("values", pb.TYPE_FP32),
    ]
    assert list(config.output[1].dims) == [-1, 2]
    assert (config.name, config.max_batch_size) == ("net", 4)


def test_authored_model_has_the_examples_and_the_note_of_its_checkpoint() -> None:
    written = authored_config('name: "net"', Batch, (Answer,), examples={"prompt": 'a "ball"'}, note="Small.")
    config = text_format.Parse(written, pb.ModelConfig())
    assert config.parameters["example_prompt"].string_value == 'a "ball"'
    assert config.parameters["checkpoint_note"].string_value == "Small."
    assert "checkpoint_note" not in authored_config('name: "net"', Batch, (Answer,))


def test_authored_model_has_its_batch_among_the_dimensions_when_it_does_not_batch() -> None:
    config = authored("max_batch_size: 0", Batch)
    assert [list(tensor.dims) for tensor in config.input][:2] == [[-1, -1]] * 2
    # Without a batcher no input is ragged.
    assert not any(tensor.allow_ragged_batch for tensor in config.input)
    assert list(config.output[1].dims) == [-1, -1, 2]


def test_input_is_optional_in_a_session_unless_a_batch_needs_it() -> None:
    alone = authored("max_batch_size: 0", Opening)
    assert [tensor.optional for tensor in alone.input] == [True, True, True]
    batched = authored("max_batch_size: 4", Opening)
    assert {tensor.name: tensor.optional for tensor in batched.input} == {
        "x": False,
        "y": True,
        "steps": True,
    }


@pytest.mark.parametrize("tensor", ["input", "output"])
def test_authored_model_is_refused_when_it_has_tensors_of_its_own(tensor: str) -> None:
    text = f'{tensor} [ {{ name: "z" data_type: TYPE_FP32 dims: [ 1 ] }} ]'
    with pytest.raises(InvalidRequest, match=r"^batches: config.pbtxt must leave its tensors to Batch, got"):
        authored_config(text, Batch, (Answer,))
    with pytest.raises(InvalidRequest, match=r"^net: config.pbtxt must leave its tensors to Batch, got"):
        authored_config(f'name: "net" {text}', Batch, (Answer,))


def source(folder: Path, decoupled: bool = False) -> Path:
    text = 'max_batch_size: 0\nbackend: "python"\n'
    text += "model_transaction_policy { decoupled: true }\n" if decoupled else ""
    (folder / "1/__pycache__").mkdir(parents=True)
    (folder / "1/__pycache__/model.pyc").write_text("")
    (folder / "1/model.py").write_text("a model")
    (folder / "config.pbtxt").write_text(text)
    return folder


def test_authored_model_is_staged_with_what_the_export_adds(tmp_path: Path) -> None:
    own = source(tmp_path / "own")
    (tmp_path / "more/deep").mkdir(parents=True)
    (tmp_path / "more/deep/file").write_text("in a folder")
    (tmp_path / "one").write_text("a file")
    model = AuthoredModel(
        "net",
        {
            "1/bytes": b"bytes",
            "1/made": lambda: b"made",
            "1/new/one": tmp_path / "one",
            "more": tmp_path / "more",
        },
        source=own,
        request=Batch,
    )
    folder = stage_authored(model, tmp_path / "staged")
    assert folder == tmp_path / "staged/net"
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    config = files.pop("config.pbtxt")
    assert files == {
        "1/model.py": b"a model",
        "1/bytes": b"bytes",
        "1/made": b"made",
        "1/new/one": b"a file",
        "more/deep/file": b"in a folder",
    }
    parsed = text_format.Parse(config, pb.ModelConfig())
    assert [tensor.name for tensor in parsed.input] == ["x", "y", "steps"]
    assert [tensor.name for tensor in parsed.output] == ["label", "values"]
    assert not parsed.parameters
    described = replace(model, usual={"steps": 7}, ranges={"steps": (1, 9)}, words={"label": ("red", "ball")})
    usual = stage_authored(described, tmp_path / "staged3")
    parsed = text_format.Parse((usual / "config.pbtxt").read_text(), pb.ModelConfig())
    told = {name: each.string_value for name, each in parsed.parameters.items()}
    assert told == {"usual_steps": "7", "range_steps": "1:9", "words_label": "red ball"}
    # Its own events go before those of the request; a second export overwrites what the first staged.
    other = stage_authored(replace(model, events=CancelRequest.events), tmp_path / "staged2")
    parsed = text_format.Parse((other / "config.pbtxt").read_text(), pb.ModelConfig())
    assert [tensor.name for tensor in parsed.output] == ["found"]
    bare = stage_authored(AuthoredModel("bare", source=own), tmp_path / "staged")
    assert (bare / "config.pbtxt").read_text() == (own / "config.pbtxt").read_text()
    named = stage_authored(AuthoredModel("remote"), tmp_path / "staged")
    assert (named / "1/model.py").exists()


def test_canceller_comes_with_models_that_stream(tmp_path: Path) -> None:
    once = AuthoredModel("once", source=source(tmp_path / "once"))
    streams = AuthoredModel("streams", source=source(tmp_path / "streams", decoupled=True))
    assert add_canceller([once]) == [once]
    assert add_canceller([]) == []
    *others, canceller = add_canceller([once, streams])
    assert others == [once, streams]
    assert canceller == AuthoredModel("slipway_cancel", request=CancelRequest)
    assert add_canceller([AuthoredModel("remote")]) == [AuthoredModel("remote")]


@pytest.mark.parametrize(
    ("family", "label", "threads"),
    [
        ("wakeword", "features", 1),
        ("wakeword", "backbone", 1),
        ("wakeword_head", "tiny", 1),
        ("airimu", "codenet", None),
        ("wan_t2v", "denoiser_high", None),
    ],
)
def test_small_graphs_whose_requests_are_merged_get_one_thread(
    family: str, label: str, threads: int | None
) -> None:
    described = family_named(family)
    with open_checkpoint(described, "tiny") as checkpoint:
        plan = described.plan(checkpoint, axes_of(described, checkpoint, {}))
        component = next(each for each in plan.components if each.label == label)
        assert graph_threads(component) == threads
    config = model_config(component, "net", Engine.ONNXRUNTIME, threads)
    assert ("intra_op_thread_count" in config.parameters) == (threads is not None)
