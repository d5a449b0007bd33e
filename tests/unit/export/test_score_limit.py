"""Attention that is too large for the softmax of ONNX Runtime's CUDA provider."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from slipway_export.repository.placement import Placement
from slipway_export.sizing.cost import counted
from slipway_export.sizing.score_limit import LARGEST_SOFTMAX, check_scores
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_serving.protocol.errors import InvalidRequest


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-1, -2), -1) @ x


def net(tokens: int, module: type[nn.Module] = Attention) -> Component:
    """A network with one attention of 4 heads, up to a batch of 2."""
    tensors = (TensorSpec(name, DType.FLOAT32, ("batch", 4, "tokens", 8)) for name in "xy")
    return Component(
        "net",
        *((each,) for each in tensors),
        (Axis("batch", 1, 1, 2), Axis("tokens", 1, 8, tokens)),
        lambda *_: module(),
        {Precision.FP32: Tolerance(1e-3, 1e-4, 0.9999)},
    )


LARGE = net(23_171)  # 2 x 4 x 23,171 x 23,171 is a little more than 2**32.


@pytest.mark.parametrize("module", [Attention, Softmax])
def test_scores_of_the_largest_attention_are_counted(module: type[nn.Module]) -> None:
    (work,) = counted(net(100, module), [{"batch": 2, "tokens": 100}])
    assert work.scores == 2 * 4 * 100 * 100


def test_large_attention_is_refused_on_a_gpu() -> None:
    said = f"attention of net must have at most {LARGEST_SOFTMAX:,} scores with engine portable on a GPU"
    with pytest.raises(InvalidRequest, match=said):
        check_scores([LARGE], lambda _: Engine.PORTABLE, {"net": Placement("gpu")}, lambda _: None)


def test_large_attention_is_reported_when_nothing_places_it() -> None:
    lines: list[str] = []
    check_scores([LARGE], lambda _: Engine.PORTABLE, {}, lines.append)
    (line,) = lines
    assert line.startswith("serve net on a CPU only: attention of net must have at most")


def test_nothing_is_said_when_attention_is_fused_or_small_or_on_a_cpu() -> None:
    lines: list[str] = []
    check_scores([LARGE], lambda _: Engine.ONNXRUNTIME, {"net": Placement("gpu")}, lines.append)
    check_scores([net(23_000)], lambda _: Engine.PORTABLE, {"net": Placement("gpu")}, lines.append)
    check_scores([LARGE], lambda _: Engine.PORTABLE, {"net": Placement("cpu")}, lines.append)
    assert lines == []
