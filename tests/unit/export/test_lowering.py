"""Fused operators: equal to torch, one node each, and gone when the export is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from slipway_export.graph.lowering import fused_attention, rotate
from slipway_export.graph.onnx import export_graph
from slipway_export.spec import Axis, Component, DType, Engine, Precision, TensorSpec, Tolerance
from slipway_export.verification.comparison import check_parity, compute_reference, verify

BOUND = {Precision.FP32: Tolerance(1e-5, 1e-5, 0.999999)}
HEADS, SIZE = 4, 16


class Attention(nn.Module):
    """Attention over [batch, rows, 64] as its caller asks for it."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.project = nn.Linear(HEADS * SIZE, HEADS * SIZE)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        q, k = (x.unflatten(2, (HEADS, SIZE)).transpose(1, 2) for x in (self.project(query), key))
        return self.attend(q, k, k * 2).transpose(1, 2).flatten(2)


def self_causal(q: Tensor, _: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, q, q + 1, is_causal=True)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, scale=1.0)


def float_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = k[:, :1, :, 0].unsqueeze(2)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def bool_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones_like(k[:, :1, :, 0], dtype=torch.bool).unsqueeze(2)
    keep = keep & (torch.arange(k.shape[2]) < 2)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def component(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Component, nn.Module]:
    module = Attention(attend).eval().requires_grad_(False)
    width = HEADS * SIZE
    return Component(
        name="attention",
        inputs=(
            TensorSpec("query", DType.FLOAT32, ("batch", "rows", width)),
            TensorSpec("key", DType.FLOAT32, ("batch", "keys", width)),
        ),
        outputs=(TensorSpec("out", DType.FLOAT32, ("batch", "rows", width)),),
        axes=(Axis("batch", 1, 2, 3), Axis("rows", 1, 6, 33), Axis("keys", 2, 5, 40)),
        load=lambda *_: module,
        tolerance=BOUND,
    ), module


@pytest.mark.parametrize("engine", list(Engine))
@pytest.mark.parametrize("attend", [plain, scaled, float_mask, bool_mask, self_causal])
def test_attention_equals_torch_at_every_point_in_both_dialects(
    tmp_path: Path, attend: Callable[[Tensor, Tensor, Tensor], Tensor], engine: Engine
) -> None:
    described, module = component(attend)
    export_graph(described, module, tmp_path / "g.onnx", opset=20, engine=engine)
    check_parity(verify(described, tmp_path / "g.onnx", compute_reference(described, module), Precision.FP32))
    nodes = onnx.load(tmp_path / "g.onnx").graph.node
    operators = Counter(node.op_type for node in nodes)
    if engine is Engine.ONNXRUNTIME:
        assert operators["MultiHeadAttention"] == 1
        assert operators["Softmax"] == 0
    else:
        assert {node.domain for node in nodes} == {""}
        assert operators["Softmax"] == 1


def test_attention_is_torchs_own_again_after_the_context() -> None:
    own = functional.scaled_dot_product_attention
    with fused_attention():
        assert functional.scaled_dot_product_attention is not own
    assert functional.scaled_dot_product_attention is own
    with pytest.raises(RuntimeError, match="broken"), fused_attention():
        raise RuntimeError("broken")
    assert functional.scaled_dot_product_attention is own


def test_attention_with_dropout_is_refused() -> None:
    q = torch.zeros(1, 1, 2, 8)
    with fused_attention(), pytest.raises(TypeError, match="dropout must be 0, got 4 and 0.5"):
        functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)


class Rotation(nn.Module):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(x, cos, sin, heads=2)


def test_rotation_turns_neighbouring_pairs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 7, 2 * 8)).astype(np.float32)
    angle = random.standard_normal((7, 4)).astype(np.float32)
    inputs = (x, np.cos(angle), np.sin(angle))
    program = torch.onnx.export(
        Rotation(),
        tuple(torch.from_numpy(a) for a in inputs),
        dynamo=True,
        opset_version=20,
        input_names=["x", "cos", "sin"],
        verbose=False,
    )
    program.save(str(tmp_path / "r.onnx"))
    session = onnxruntime.InferenceSession(tmp_path / "r.onnx", providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, dict(zip(("x", "cos", "sin"), inputs, strict=True)))
    # As complex numbers: (a + bi) * (cos + i sin).
    pairs = x.reshape(2, 7, 2, 4, 2)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)[None, :, None]
    expected = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
