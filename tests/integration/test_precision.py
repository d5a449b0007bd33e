"""The dialects and precisions of the exported denoiser: what its graph holds, and what comes back after."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from torch.nn import functional

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import family_named
from slipway_export.graph.dialect import check_operators
from slipway_export.graph.onnx import export_graph
from slipway_export.graph.opset import DEFAULT_OPSET
from slipway_export.options import ExportOptions
from slipway_export.run import _other_precisions, plan_of, run_export
from slipway_export.spec import Engine, Loading, Precision
from slipway_serving.protocol.errors import InvalidRequest

pytestmark = pytest.mark.long

FAMILY = family_named("wan_t2v")
MODEL = "wan_t2v_denoiser_high/1/model.onnx"


def export(checkpoint: Path, repository: Path, precision: Precision) -> onnx.ModelProto:
    options = ExportOptions(
        checkpoint=str(checkpoint), repository=repository, precision=precision, components=("denoiser_high",)
    )
    rows = run_export(FAMILY, options).rows
    assert all(1e-6 < row.relative_l2 < row.bound.relative_l2 for row in rows)
    assert [path.name for path in (repository / MODEL).parent.iterdir()] == ["model.onnx"]
    return onnx.load(repository / MODEL)


def test_fp32_graph_has_one_attention_operator_per_attention(repository: Path) -> None:
    operators = Counter(node.op_type for node in onnx.load(repository / MODEL).graph.node)
    assert operators["MultiHeadAttention"] == 4  # two blocks, self- and cross-attention
    assert operators["RotaryEmbedding"] == 4  # queries and keys of two self-attentions
    assert operators["Softmax"] == operators["ScatterND"] == 0
    encoder = onnx.load(repository / "wan_t2v_text_encoder/1/model.onnx")
    assert Counter(node.op_type for node in encoder.graph.node)["MultiHeadAttention"] == 2


@pytest.mark.parametrize(
    ("precision", "operator"), [(Precision.INT8, "MatMulInteger"), (Precision.INT4, "MatMulNBits")]
)
def test_integer_graph_is_smaller_and_keeps_the_sensitive_products(
    checkpoint: Path, repository: Path, tmp_path: Path, precision: Precision, operator: str
) -> None:
    graph = export(checkpoint, tmp_path, precision).graph
    operators = Counter(node.op_type for node in graph.node)
    # Of each block: q, k, v, out of two attentions and two of the feed-forward.
    assert operators[operator] == 2 * 10
    kept = [weight.name for weight in graph.initializer if "proj_out" in weight.name]
    assert kept
    assert all("quantized" not in name and "Q4" not in name for name in kept)
    assert (tmp_path / MODEL).stat().st_size < 0.8 * (repository / MODEL).stat().st_size


@pytest.mark.parametrize("precision", [Precision.FP16, pytest.param(Precision.BF16, marks=pytest.mark.long)])
def test_half_graph_keeps_embedders_and_final_projection_in_fp32(
    checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    weights = export(checkpoint, tmp_path, precision).graph.initializer
    kinds = {weight.name: weight.data_type for weight in weights}
    half = onnx.TensorProto.FLOAT16 if precision is Precision.FP16 else onnx.TensorProto.BFLOAT16
    sensitive = {
        name: kind for name, kind in kinds.items() if "condition_embedder" in name or "proj_out" in name
    }
    assert len(sensitive) > 4
    assert set(sensitive.values()) == {onnx.TensorProto.FLOAT}
    assert sum(kind == half for kind in kinds.values()) > 10


def test_standard_dialect_has_no_contrib_operator(checkpoint: Path, tmp_path: Path) -> None:
    with open_checkpoint(FAMILY, str(checkpoint)) as opened:
        denoiser = FAMILY.plan(opened, FAMILY.presets["tiny"].axes).components[1]
        module = denoiser.load(Precision.FP32, Loading.READ)
        export_graph(denoiser, module, tmp_path / "g.onnx", opset=DEFAULT_OPSET, engine=Engine.TENSORRT)
    assert {node.domain for node in onnx.load(tmp_path / "g.onnx").graph.node} == {""}
    check_operators(tmp_path / "g.onnx", Engine.TENSORRT, denoiser.label)


@pytest.mark.parametrize(
    "precision",
    [
        Precision.INT8,
        *(pytest.param(each, marks=pytest.mark.long) for each in (Precision.FP8, Precision.INT4)),
    ],
)
def test_quantized_graph_for_tensorrt_is_in_half_precision_around_its_products(
    checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    path = tmp_path / "g.onnx"
    options = ExportOptions(
        str(checkpoint),
        output=path,
        engine=Engine.TENSORRT,
        precision=precision,
        components=("denoiser_high",),
    )
    rows = run_export(FAMILY, options).rows
    assert all(1e-3 < row.relative_l2 < row.bound.relative_l2 for row in rows)
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    kinds = {weight.name: weight.data_type for weight in graph.initializer}
    weights = [node for node in graph.node if node.input and node.input[0].endswith("_quantized")]
    # Of each block: q, k, v, out of two attentions and two of the feed-forward.
    assert [node.op_type for node in weights] == ["DequantizeLinear"] * 2 * 10
    assert {kinds[node.input[1]] for node in weights} == {onnx.TensorProto.FLOAT16}
    sensitive = [name for name in kinds if "condition_embedder" in name or "proj_out" in name]
    assert len(sensitive) > 4
    assert {kinds[name] for name in sensitive} == {onnx.TensorProto.FLOAT}
    softmax = {node.output[0] for node in graph.node if node.op_type == "Softmax"}
    inside = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    assert {inside[name] for name in softmax} == {onnx.TensorProto.FLOAT16}
    assert {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)} == {
        onnx.TensorProto.FLOAT
    }


def test_text_encoder_stays_in_fp32_when_tensorrt_is_asked_for_fp16(checkpoint: Path) -> None:
    with open_checkpoint(FAMILY, str(checkpoint)) as opened:
        axes = FAMILY.presets["tiny"].axes
        components = plan_of(FAMILY, opened, None, axes, Engine.TENSORRT).components
    options = ExportOptions(str(checkpoint), Path("models"), precision=Precision.FP16)
    assert [component.precision(Precision.FP16) for component in components[:2]] == [
        Precision.FP32,
        Precision.FP16,
    ]
    assert list(_other_precisions(components[:2], options)) == [
        "fp32 instead of fp16, which is not offered for: text_encoder"
    ]


def test_tensorrt_is_only_verified(checkpoint: Path, tmp_path: Path) -> None:
    options = ExportOptions(
        checkpoint=str(checkpoint),
        repository=tmp_path,
        engine=Engine.TENSORRT,
        components=("denoiser_high",),
        check_only=True,
    )
    assert run_export(FAMILY, options).placed is False
    with pytest.raises(InvalidRequest, match="engine tensorrt must have TensorRT installed to build engines"):
        run_export(FAMILY, ExportOptions(str(checkpoint), tmp_path, engine=Engine.TENSORRT))
    assert list(tmp_path.iterdir()) == []


def test_network_has_its_own_attention_again_after_lowering(checkpoint: Path) -> None:
    with open_checkpoint(FAMILY, str(checkpoint)) as opened:
        plan = FAMILY.plan(opened, FAMILY.presets["tiny"].axes)
        encoder, denoiser = (
            component.load(Precision.FP32, Loading.READ) for component in plan.components[:2]
        )
        own = [block.attn1.processor for block in denoiser.transformer.blocks]
        with plan.components[0].lower(encoder), plan.components[1].lower(denoiser):
            assert [block.attn1.processor for block in denoiser.transformer.blocks] != own
            assert encoder.encoder.config._attn_implementation == "sdpa"
        assert [block.attn1.processor for block in denoiser.transformer.blocks] == own
        assert encoder.encoder.config._attn_implementation == "eager"
    assert functional.scaled_dot_product_attention.__module__ != "slipway_export.graph.lowering"
