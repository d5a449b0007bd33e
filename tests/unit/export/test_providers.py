"""Execution providers of ONNX Runtime on GPUs: how they are written, refused, and placed in config.pbtxt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.engines.providers import Provider, choose_providers, parse_providers
from slipway_export.options import ExportOptions
from slipway_export.repository.accelerators import (
    accelerator,
    cache_prefix,
    check_profile,
    set_accelerator,
)
from slipway_export.repository.config import config_text, model_config
from slipway_export.repository.placement import Placement, set_instances
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest

BOUND = Tolerance(1e-3, 1e-4, 0.9999)
NET = Component(
    "net",
    (
        TensorSpec("x", DType.FLOAT32, ("batch", "rows", 4)),
        TensorSpec("scale", DType.FLOAT32, ("batch",)),
        TensorSpec("table", DType.FLOAT32, (3, 4)),
    ),
    (TensorSpec("y", DType.FLOAT32, ("batch", "2 * rows")),),
    (Axis("batch", 1, 2, 8), Axis("rows", 3, 5, 7)),
    lambda *_: None,  # type: ignore[arg-type, return-value]
    dict.fromkeys((Precision.FP32, Precision.FP16, Precision.INT8), BOUND),
)
OTHER = replace(NET, name="other")
INSIDE = replace(NET, name="inside", graph="first")
GPU = Placement("gpu")


def options(**changes: Any) -> ExportOptions:
    return ExportOptions("tiny", Path("models"), **{"engine": Engine.PORTABLE, **changes})


def test_providers_are_read_by_component() -> None:
    assert parse_providers(["cuda", "vae-encoder=tensorrt"]) == {"": "cuda", "vae_encoder": "tensorrt"}
    with pytest.raises(InvalidRequest, match="provider must be one of cuda, tensorrt, .* got 'net=openvino'"):
        parse_providers(["net=openvino"])


def test_provider_of_all_graphs_leaves_out_what_triton_does_not_serve_by_onnx_runtime() -> None:
    places = {"net": GPU, "other": Placement("gpu", (1,)), "far": Placement("server", server="far:8001")}
    asked = options(providers={"": "cuda", "other": "tensorrt"}, placements=places)
    chosen = choose_providers([NET, OTHER, INSIDE, replace(NET, name="far")], asked)
    assert chosen == {"net": Provider.CUDA, "other": Provider.TENSORRT}
    assert choose_providers([NET], options()) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"providers": {"nte": "cuda"}}, ["provider must name an exported component (net, inside), got nte"]),
        ({"providers": {"": "cuda"}},
         ["provider of net must be left out unless it is placed on a GPU, got cuda with no place; try --place"
          " net=gpu"]),
        ({"providers": {"net": "tensorrt"}, "placements": {"net": Placement("cpu")},
          "engine": Engine.ONNXRUNTIME, "precision": Precision.INT8},
         ["placed on a GPU, got tensorrt with cpu; try --place net=gpu",
          "provider of net must be cuda with engine onnxruntime, whose graphs have operators that TensorRT"
          " does not know, got tensorrt; try --engine portable",
          "precision of net must be one of fp32, fp16 with provider tensorrt, got int8"]),
        ({"providers": {"inside": "tensorrt"}, "placements": {"inside": GPU}},
         ["provider of inside must be left out, because its model runs the graphs itself, on the device of"
          " its place, got tensorrt"]),
        ({"providers": {"net": "cuda"}, "placements": {"net": GPU}, "engine": Engine.TORCH},
         ["provider of net must be left out, because engine torch serves it without ONNX Runtime, got cuda"]),
        ({"providers": {"": "cuda"}, "placements": {"net": GPU}, "engine": Engine.TORCH},
         ["provider must be left out where ONNX Runtime serves no graph, got cuda"]),
        ({"providers": {"net": "cuda"}, "placements": {"net": Placement("server", server="far:8001")}},
         ["provider of net must be left out, because the server far:8001 runs its graph, got cuda"]),
    ],
)  # fmt: skip
def test_provider_is_refused_by_name_where_it_does_not_apply(
    changes: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(InvalidRequest) as failure:
        choose_providers([NET, INSIDE], options(**changes))
    assert [part for part in said if part not in str(failure.value)] == []


def test_provider_is_refused_for_a_graph_in_a_file() -> None:
    with pytest.raises(InvalidRequest, match="provider requires --repository, got --output with net=cuda"):
        ExportOptions("tiny", output=Path("g.onnx"), providers={"net": "cuda"})


def placed(component: Component, provider: Provider, precision: Precision, folder: Path) -> pb.ModelConfig:
    """Return the configuration of a component on a GPU, as it is read from its file."""
    path = folder / "config.pbtxt"
    path.write_text(config_text(model_config(component, "family_net", Engine.PORTABLE)), encoding="utf-8")
    set_instances(path, GPU)
    set_accelerator(path, accelerator(component, provider, precision, "family_net_0a"))
    return text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())


def test_accelerator_for_tensorrt_has_the_axes_as_profile_and_a_cache_of_its_own(tmp_path: Path) -> None:
    config = placed(NET, Provider.TENSORRT, Precision.FP16, tmp_path)
    (entry,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert entry.name == "tensorrt"
    assert dict(entry.parameters) == {
        "precision_mode": "FP16",
        "trt_profile_min_shapes": "x:1x3x4,scale:1",
        "trt_profile_opt_shapes": "x:2x5x4,scale:2",
        "trt_profile_max_shapes": "x:8x7x4,scale:8",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "tensorrt_engines",
        "trt_engine_cache_prefix": "family_net_0a",
    }
    (group,) = config.instance_group
    assert (group.kind, group.count) == (pb.ModelInstanceGroup.KIND_GPU, 1)
    # The rest of the configuration stays.
    assert [list(tensor.dims) for tensor in config.input] == [[-1, -1, 4], [-1], [3, 4]]


def test_accelerator_has_no_profile_when_every_size_is_fixed(tmp_path: Path) -> None:
    fixed = replace(NET, axes=tuple(axis.fixed for axis in NET.axes))
    config = placed(fixed, Provider.TENSORRT, Precision.FP32, tmp_path)
    (entry,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert not [name for name in entry.parameters if "profile" in name]
    assert entry.parameters["precision_mode"] == "FP32"


def test_accelerator_for_cuda_has_a_name_only(tmp_path: Path) -> None:
    config = placed(NET, Provider.CUDA, Precision.FP32, tmp_path)
    (entry,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (entry.name, dict(entry.parameters)) == ("cuda", {})


def test_graph_of_varying_sizes_is_refused_when_tensorrt_does_not_know_an_operator(tmp_path: Path) -> None:
    spectrum = onnx.helper.make_node("DFT", ["x"], ["y"])
    graph = onnx.helper.make_graph([spectrum], "g", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    with pytest.raises(InvalidRequest) as failure:
        check_profile(NET, tmp_path / "model.onnx")
    assert str(failure.value) == (
        "provider of net must be cuda for a graph of varying sizes with operators that TensorRT does not know"
        " (DFT), got tensorrt; try --provider net=cuda, or --fixed-shapes"
    )
    # ONNX Runtime needs no profile for sizes that do not vary, and gives CUDA the rest of the graph.
    check_profile(replace(NET, axes=tuple(axis.fixed for axis in NET.axes)), tmp_path / "model.onnx")


def test_engines_of_other_weights_are_cached_under_another_name() -> None:
    one, two = (cache_prefix("family_net", digest * 32) for digest in ("0a", "0b"))
    assert one == "family_net_0a0a0a0a0a0a0a0a"
    assert len({one, two, cache_prefix("family_other", "0a" * 32)}) == 3
