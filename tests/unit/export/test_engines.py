"""Engines of single components, and the options of engine torch, as they are written and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from slipway_export.commands.optional_value import insert_defaults
from slipway_export.engines.choice import choose_torch, widest
from slipway_export.engines.device import Device
from slipway_export.engines.requested import TorchRequest, parse_engines, parse_torch
from slipway_export.options import ExportOptions
from slipway_export.repository.placement import Placement
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.torch_engine.options import COMPILE_MODES, Offload, TorchOptions, Weights

BOUNDS = {
    Precision.FP32: Tolerance(1e-3, 1e-4, 0.9999),
    Precision.BF16: Tolerance(0.5, 5e-2, 0.998),
    Precision.INT8: Tolerance(1.0, 8e-2, 0.997),
}
NET = Component(
    "net",
    (TensorSpec("x", DType.FLOAT32, ("batch", 4)),),
    (TensorSpec("y", DType.FLOAT32, ("batch", 4)),),
    (Axis("batch", 1, 2, 8),),
    lambda *_: nn.Linear(4, 4, device="meta"),
    BOUNDS,
)
PLAIN = replace(NET, name="plain", tolerance={Precision.FP32: BOUNDS[Precision.FP32]})
FIRST, NEXT = (replace(NET, name="decoder", graph=graph) for graph in ("first", "next"))
GPU = {"net": Placement("gpu")}


def options(**changes: Any) -> ExportOptions:
    return ExportOptions("tiny", Path("models"), **{"engine": Engine.TORCH, **changes})


def test_engine_of_one_component_goes_before_that_of_all() -> None:
    of_all, engines = parse_engines(["torch", "vae-decoder=onnxruntime"])
    asked = options(engine=of_all, engines=engines)
    assert asked.engine_of(NET) is Engine.TORCH
    assert asked.engine_of(replace(NET, name="vae_decoder")) is Engine.ONNXRUNTIME
    assert parse_engines([]) == (Engine.ONNXRUNTIME, {})


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["jax"], "engine must be one of onnxruntime, .*torch, or NAME=ENGINE for a component, got 'jax'"),
        (["=torch"], "got '=torch'"),
        (["net="], "got 'net='"),
        (["torch", "onnxruntime"], "engine of all must be given once"),
        (["net=torch", "net=torch"], "engine of net must be given once"),
    ],
)
def test_engines_are_refused_by_what_was_typed(texts: list[str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_engines(texts)


def test_torch_options_are_read_by_component() -> None:
    asked = parse_torch(["int8", "net=bf16"], ["default"], [], ["net=layers"], cuda_graphs=True)
    assert asked.weights == {"": "int8", "net": "bf16"}
    assert (asked.compile, asked.offload, asked.cuda_graphs) == ({"": "default"}, {"net": "layers"}, True)
    with pytest.raises(
        InvalidRequest, match="weights must be one of bf16, fp8, int8, int4, .* got 'net=fp4'"
    ):
        parse_torch(["net=fp4"], [], [], [], cuda_graphs=False)


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["--compile", "--force"], ["--compile", "default", "--force"]),
        (["--compile"], ["--compile", "default"]),
        (["--compile", "wan_t2v"], ["--compile", "default", "wan_t2v"]),
        (["--compile", "max-autotune", "x"], ["--compile", "max-autotune", "x"]),
        (["--compile", "net=default"], ["--compile", "net=default"]),
        (["--compile=default", "x"], ["--compile=default", "x"]),
    ],
)
def test_compile_stands_alone_where_no_mode_follows(typed: list[str], read: list[str]) -> None:
    assert insert_defaults(typed, {"--compile": COMPILE_MODES}) == read


def test_components_are_served_as_asked_for_them() -> None:
    asked = options(
        torch=TorchRequest({"": "int8"}, {"net": "default"}, offload={"net": "layers"}),
        precision=Precision.BF16,
        placements=GPU,
        verify_device=Device.CUDA,
    )
    choices = choose_torch([NET, PLAIN], asked)
    net, plain = choices["net"], choices["plain"]
    assert net.options == TorchOptions("bf16", Weights.INT8, "default", offload=Offload.LAYERS)
    # The wider of both bounds, since both round.
    assert (net.on_gpu, net.tolerance(NET)) == (True, BOUNDS[Precision.INT8])
    # Without bounds for them it stays as it is, as its graph would, and says so.
    assert (plain.options, plain.differs, plain.bounds) == (TorchOptions(), True, (Precision.FP32,))
    assert choose_torch([NET], options(engine=Engine.ONNXRUNTIME)) == {}
    graphs = choose_torch([FIRST, NEXT], options(torch=TorchRequest({"decoder": "int8"})))
    assert [choice.options.weights for choice in graphs.values()] == [Weights.INT8, Weights.INT8]


@pytest.mark.parametrize(
    ("components", "changes", "said"),
    [
        ([NET], {"engines": {"nte": Engine.TORCH}}, "engine must name a component .*.net., got nte"),
        ([NET], {"engine": Engine.ONNXRUNTIME, "torch": TorchRequest({"": "int8"})},
         "weights must be given with --engine torch, got int8"),
        ([NET], {"engine": Engine.ONNXRUNTIME, "torch": TorchRequest(cuda_graphs=True)},
         "cuda-graphs must be given with --engine torch"),
        ([NET, PLAIN], {"engines": {"plain": Engine.ONNXRUNTIME}, "torch": TorchRequest({"plain": "int8"})},
         "weights must name a component that engine torch serves .net., got plain=int8; try --engine"),
        ([PLAIN], {"torch": TorchRequest({"plain": "int8"})}, "weights of plain must be left out, got int8"),
        ([NET], {"torch": TorchRequest({"net": "int4"})}, "weights of net must be one of bf16, fp8, int8,"),
        ([NET], {"torch": TorchRequest({"": "fp8"})}, "weights must be left out where net runs on a CPU"),
        ([NET], {"torch": TorchRequest(cuda_graphs=True)}, "cuda-graphs must be left out where net runs"),
        ([NET], {"torch": TorchRequest(offload={"": "model"})}, "offload must be left out where net runs"),
        ([NET], {"precision": Precision.INT8}, "precision of net must be one of fp64, .* got int8; try --w"),
        ([NET], {"torch": TorchRequest(attention={"": "sdpa"})},
         "net: attention must be left out .the network has no choice of attention., got sdpa"),
        ([NET], {"torch": TorchRequest(cuda_graphs=True), "placements": GPU},
         "verify-device must be cuda for net, whose options need a GPU .*CUDA graphs., got cpu"),
        ([NET], {"opset": 20}, "opset-version must be left out with engine torch, which .*, got 20"),
        ([NET], {"simplify": True}, "simplify must be left out with engine torch"),
        ([NET, FIRST], {"engines": {"decoder": Engine.ONNXRUNTIME}, "torch": TorchRequest({"": "int8"})},
         None),
    ],
)  # fmt: skip
def test_what_does_not_apply_is_refused_before_any_work(
    components: list[Component], changes: dict[str, Any], said: str | None
) -> None:
    if said is None:
        assert choose_torch(components, options(**changes)).keys() == {"net"}
        return
    with pytest.raises(InvalidRequest, match=said):
        choose_torch(components, options(**changes))


def transformer() -> nn.Module:
    from diffusers import WanTransformer3DModel

    sizes = {"num_attention_heads": 1, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4}
    with torch.device("meta"):
        return WanTransformer3DModel(**sizes, text_dim=8, freq_dim=8, ffn_dim=8, num_layers=1)


def encoder() -> nn.Module:
    from transformers import UMT5Config, UMT5EncoderModel

    with torch.device("meta"):
        return UMT5EncoderModel(
            UMT5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        )


@pytest.mark.parametrize(
    ("made", "attention", "said"),
    [
        (
            transformer,
            "flash",
            "net: attention must be an installed backend of diffusers' dispatcher, got flash",
        ),
        (transformer, "lightning", "must be an installed backend of diffusers' dispatcher, got lightning"),
        (
            encoder,
            "flash",
            "net: attention must be sdpa .the network does not use diffusers' dispatcher., got",
        ),
    ],
)
def test_attention_is_refused_where_the_network_or_this_machine_has_it_not(
    made: Callable[[], nn.Module], attention: str, said: str
) -> None:
    net = replace(NET, load=lambda *_: made())
    asked = options(torch=TorchRequest(attention={"": attention}), placements=GPU, verify_device=Device.CUDA)
    with pytest.raises(InvalidRequest, match=said):
        choose_torch([net], asked)
    choose_torch([net], options(torch=TorchRequest(attention={"": "sdpa"})))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engines": {"net": Engine.TORCH}, "engine": Engine.PORTABLE},
         "engine must be onnxruntime, torch, tensorrt or tensorrt-rtx if components have different engines,"
         " got portable"),
        ({"engines": {"net": Engine.PORTABLE}}, "engine of net must be onnxruntime, torch, tensorrt or"),
        ({"repository": None, "output": Path("g.onnx")}, "engine torch writes no graph file"),
    ],
)  # fmt: skip
def test_engines_are_refused_where_no_repository_mixes_them(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ExportOptions("tiny", **{"repository": Path("models"), "engine": Engine.TORCH, **changes})


def test_widest_bounds_are_kept_by_what_keeps_any_of_them() -> None:
    narrow, wide = Tolerance(1e-3, 1e-4, 0.9999, 0.99), Tolerance(1.0, 1e-5, 0.9, 0.9)
    assert widest([narrow, wide]) == Tolerance(1.0, 1e-4, 0.9, 0.9)
    assert widest([narrow, replace(wide, row_cosine=None)]).row_cosine is None
