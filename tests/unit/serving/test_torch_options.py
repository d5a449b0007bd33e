"""The options of engine torch: what they refuse, and how a configuration carries them."""

from __future__ import annotations

import pytest

from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.torch_engine.options import Offload, TorchOptions, Weights


@pytest.mark.parametrize(
    ("options", "on_gpu", "said"),
    [
        (TorchOptions(precision="int8"), False, "precision of net must be one of fp64, fp32, fp16, bf16"),
        (TorchOptions(compile="fast"), False, "compile of net must be one of default, .* got fast"),
        (
            TorchOptions("bf16", Weights.FP8),
            False,
            "weights must be left out where net runs on a CPU, .* fp8",
        ),
        (TorchOptions(cuda_graphs=True), False, "cuda-graphs must be left out where net runs on a CPU"),
        (TorchOptions(offload=Offload.LAYERS), False, "offload must be left out .* a CPU, .* got layers"),
        (
            TorchOptions(attention="flash"),
            False,
            "attention of net must be one of sdpa, native, .* got flash",
        ),
        (TorchOptions(compile="max-autotune"), False, "compile of net must be a mode without CUDA graphs"),
        (TorchOptions("fp16", Weights.BF16), True, "weights of net must be left out with precision fp16"),
        (TorchOptions("fp32", Weights.FP8), True, "precision of net must be bf16 with weights fp8, got fp32"),
        (
            TorchOptions("fp16", Weights.INT4),
            True,
            "precision of net must be bf16 with weights int4 on a GPU",
        ),
        (
            TorchOptions(compile="default", cuda_graphs=True),
            True,
            "cuda-graphs must be given without compile for net, got both; try --compile reduce-overhead",
        ),
        (
            TorchOptions(cuda_graphs=True, offload=Offload.MODEL),
            True,
            "offload of net must be none with CUDA graphs, .* got model",
        ),
        (
            TorchOptions(compile="reduce-overhead", offload=Offload.LAYERS),
            True,
            "offload of net must be none with CUDA graphs, .* got layers",
        ),
        (
            TorchOptions("bf16", Weights.INT4, offload=Offload.MODEL),
            True,
            "offload of net must be none with weights int4, .* got model; try --weights net=int8",
        ),
    ],
)
def test_options_are_refused_by_flag_rule_and_value(options: TorchOptions, on_gpu: bool, said: str) -> None:
    (problem,) = options.problems("net", on_gpu=on_gpu)
    with pytest.raises(InvalidRequest, match=said):
        raise InvalidRequest(problem)


@pytest.mark.parametrize(
    ("options", "on_gpu"),
    [
        (TorchOptions(), False),
        (TorchOptions("bf16", Weights.INT8, "default", "sdpa"), False),
        (TorchOptions("bf16", Weights.FP8, "max-autotune", "flash"), True),
        (TorchOptions("fp32", Weights.BF16, cuda_graphs=True), True),
        (TorchOptions("bf16", Weights.INT8, "default", offload=Offload.LAYERS), True),
        (TorchOptions("bf16", Weights.INT4), True),
    ],
)
def test_options_come_back_from_a_configuration_when_they_go_together(
    options: TorchOptions, on_gpu: bool
) -> None:
    assert options.problems("net", on_gpu=on_gpu) == []
    assert TorchOptions.from_parameters("net", options.parameters()) == options


def test_parameters_are_refused_together_when_they_cannot_be_read() -> None:
    with pytest.raises(InvalidRequest) as refused:
        TorchOptions.from_parameters("net", {"weights": "int3", "cuda_graphs": "yes", "other": "1"})
    assert "net: parameter weights of config.pbtxt must be one of bf16, fp8, int8, int4, got 'int3'" in str(
        refused.value
    )
    assert "parameter cuda_graphs of config.pbtxt must be one of true, false, got 'yes'" in str(refused.value)


def test_network_is_loaded_in_bfloat16_when_its_weights_are() -> None:
    assert TorchOptions(weights=Weights.BF16).load_precision == "bf16"
    assert TorchOptions("fp16", Weights.INT8).load_precision == "fp16"
    assert TorchOptions("bf16", Weights.INT8, "default").summary == "bf16, int8 weights, compiled (default)"
