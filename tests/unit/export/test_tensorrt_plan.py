"""The plan of an engine: profiles from a component's axes, and the command of NVIDIA's program."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from torch import nn
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.engines.tensorrt.choice import EngineChoice
from slipway_export.engines.tensorrt.cures import cure_of
from slipway_export.engines.tensorrt.plan import (
    EngineOptions,
    EnginePlan,
    Profile,
    Profiles,
    component_profiles,
)
from slipway_export.engines.tensorrt.report import BuildReport, NodeError
from slipway_export.engines.tensorrt.staged_engine import stage_plan_model
from slipway_export.sizing.engine_needs import builder_bytes, with_builder
from slipway_export.sizing.resource_check import Requirements
from slipway_export.spec import Axis, Component, DType, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.tensorrt.library import Library

NET = Component(
    "net",
    (TensorSpec("x", DType.FLOAT32, ("batch", "2 * frames", 4)), TensorSpec("t", DType.FLOAT32, ("batch",))),
    (TensorSpec("y", DType.FLOAT32, ("batch", 4)),),
    (Axis("batch", 1, 2, 8), Axis("frames", 1, 5, 9)),
    lambda *_: nn.Linear(4, 4, device="meta"),
    {Precision.FP32: Tolerance(1e-3, 1e-4, 0.9999)},
)
PLAN = EnginePlan(
    Library.RTX,
    Path("a graph.onnx"),
    Path("net.engine"),
    ("sm89", "sm120"),
    component_profiles(NET, Profiles.LATENCY),
    EngineOptions(workspace_bytes=2**30, builder_level=5, weight_streaming=True),
)


def test_flexible_profile_spans_every_axis() -> None:
    assert component_profiles(NET, Profiles.FLEXIBLE) == (
        Profile("flexible", {"x": ((1, 2, 4), (2, 10, 4), (8, 18, 4)), "t": ((1,), (2,), (8,))}),
    )


def test_latency_adds_a_profile_of_the_traced_sizes_before_the_flexible_one() -> None:
    first, second = component_profiles(NET, Profiles.LATENCY)
    assert first == Profile("opt", {"x": ((2, 10, 4),) * 3, "t": ((2,),) * 3})
    assert (second,) == component_profiles(NET, Profiles.FLEXIBLE)


def test_plan_is_the_same_after_it_was_written_and_read() -> None:
    cached = replace(PLAN, engine=None, options=EngineOptions(timing_cache=Path("times"), strip_weights=True))
    for plan in (PLAN, cached):
        assert EnginePlan.from_json(plan.to_json()) == plan


def test_command_names_every_part_of_the_plan() -> None:
    assert shlex.split(PLAN.command) == [
        "tensorrt_rtx", "--onnx=a graph.onnx", "--saveEngine=net.engine", "--computeCapabilities=8.9,12.0",
        "--profile=0", "--minShapes=x:2x10x4,t:2", "--optShapes=x:2x10x4,t:2", "--maxShapes=x:2x10x4,t:2",
        "--profile=1", "--minShapes=x:1x2x4,t:1", "--optShapes=x:2x10x4,t:2", "--maxShapes=x:8x18x4,t:8",
        "--noTF32", "--memPoolSize=workspace:1024M", "--builderOptimizationLevel=5", "--allowWeightStreaming",
        "--skipInference",
    ]  # fmt: skip
    own = replace(
        PLAN,
        library=Library.TENSORRT,
        engine=None,
        targets=("sm90",),
        profiles=component_profiles(NET, Profiles.FLEXIBLE),
        options=EngineOptions(timing_cache=Path("times")),
    )
    assert shlex.split(own.command) == [
        "trtexec", "--onnx=a graph.onnx", "--saveEngine=a graph.plan", "--stronglyTyped",
        "--minShapes=x:1x2x4,t:1", "--optShapes=x:2x10x4,t:2", "--maxShapes=x:8x18x4,t:8", "--noTF32",
        "--timingCacheFile=times", "--skipInference",
    ]  # fmt: skip


def test_report_is_the_same_after_it_was_written_and_read() -> None:
    report = BuildReport(
        "1.7",
        parsed=True,
        built=False,
        errors=(NodeError("node", "TopK", "K is too large", "a K of at most 3840"),),
        inputs={"x": ("FLOAT", (-1, 4))},
        outputs={"y": ("HALF", (-1,))},
    )
    assert BuildReport.from_json(report.to_json()) == report
    assert report.errors[0].text == "node (TopK): K is too large; try a K of at most 3840"


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("decompose_composite_ops: Attention operation was not supported by a dedicated kernel", "opset 22"),
        ("RMSNormalization: types must be equal", "a scale of the same type"),
        ("std::bad_alloc", "more memory"),
        ("something that nobody saw", ""),
    ],
)
def test_known_error_has_a_cure(message: str, cure: str) -> None:
    assert cure in cure_of(message)
    assert bool(cure_of(message)) == bool(cure)


def test_configuration_of_a_plan_has_platform_profiles_and_a_recorded_size(tmp_path: Path) -> None:
    folder = tmp_path / "family_net"
    folder.mkdir()
    choice = EngineChoice(
        Library.TENSORRT, "11.3.0.99", ("sm90",), Profiles.LATENCY, EngineOptions(), placed=True
    )
    stage_plan_model(NET, choice, folder)
    config = text_format.Parse((folder / "config.pbtxt").read_text(), pb.ModelConfig())
    assert (config.platform, config.backend) == ("tensorrt_plan", "tensorrt")
    assert config.default_model_filename == "model.plan"
    (group,) = config.instance_group
    assert (group.kind, list(group.profile)) == (pb.ModelInstanceGroup.KIND_GPU, ["0", "1"])
    assert config.optimization.cuda.graphs
    (spec,) = config.optimization.cuda.graph_spec
    assert spec.batch_size == 2
    assert {name: list(shape.dim) for name, shape in spec.input.items()} == {"x": [10, 4], "t": []}


def test_configuration_of_a_plan_refuses_an_engine_of_the_other_library(tmp_path: Path) -> None:
    choice = EngineChoice(Library.RTX, "1.7", ("sm89",), Profiles.FLEXIBLE, EngineOptions(), placed=True)
    with pytest.raises(InvalidRequest, match="net: a plan must be of TensorRT, got TensorRT-RTX"):
        stage_plan_model(NET, choice, tmp_path)


def test_requirements_of_an_engine_include_its_builder_and_its_file() -> None:
    graph = Requirements(parameters=10**9, disk_bytes=2 * 10**9, verification_bytes=0, memory_bytes=10**9)
    built = with_builder(graph)
    assert built.disk_bytes == 2 * graph.disk_bytes
    assert built.memory_bytes == int(builder_bytes(graph.disk_bytes)) > 3 * graph.memory_bytes
