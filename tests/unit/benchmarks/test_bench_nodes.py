"""Counting the nodes of a block, with and without the exporter's notes on where a node is from."""

from __future__ import annotations

import onnx
from onnx import helper

from slipway_benchmarks.denoiser.nodes import count


def node(operator: str, inputs: str, output: str, scope: str = "", domain: str = "") -> onnx.NodeProto:
    made = helper.make_node(operator, inputs.split(), [output], domain=domain)
    if scope:
        entry = made.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.name_scopes", f"['', 'transformer', '{scope}']"
    return made


def test_blocks_are_counted_by_scope_when_the_exporter_named_them() -> None:
    counted = count(
        [
            node("Conv", "x", "a", "patch_embedding"),
            node("MatMul", "a", "b", "transformer.blocks.0.attn1"),
            node("Add", "b a", "c", "transformer.blocks.0"),
            node("MatMul", "c", "d", "transformer.blocks.1.attn1"),
            node("Add", "d c", "e", "transformer.blocks.1"),
            node("MatMul", "e", "y", "proj_out"),
        ]
    )
    assert (counted.total, counted.per_block) == (6, 2)
    assert counted.operators == {"MatMul": 3, "Add": 2, "Conv": 1}


def test_unnamed_nodes_join_their_block_when_a_quantizer_made_them() -> None:
    nodes = [node("Conv", "x", "h0", "patch_embedding"), node("Shape", "x", "shared")]
    for i in (0, 1):
        nodes += [
            node("Identity", f"h{i} shared", f"in{i}", f"blocks.{i}.ffn"),
            node("DynamicQuantizeLinear", f"in{i}", f"q{i}"),
            node("MatMulInteger", f"q{i} w{i}", f"m{i}"),
            node("Add", f"m{i} h{i}", f"h{i + 1}", f"blocks.{i}"),
        ]
    # The shared Shape feeds both blocks and belongs to neither.
    assert count(nodes).per_block == 4


def test_unnamed_node_joins_the_block_before_it_when_what_follows_is_outside() -> None:
    nodes = [node("Add", "x", "a", "blocks.0"), node("Cast", "a", "b"), node("MatMul", "b", "y", "proj_out")]
    assert count(nodes).per_block == 2


def test_first_block_does_not_count_for_all_when_it_holds_shared_nodes() -> None:
    nodes = [node("Cos", "x", "r", "blocks.0"), node("Add", "r", "a", "blocks.0")]
    assert count([*nodes, node("Add", "a r", "b", "blocks.1")]).per_block == 1


def test_per_block_is_unknown_when_nothing_names_a_block() -> None:
    counted = count([node("MatMul", "x", "y"), node("FusedMatMul", "y", "z", domain="com.microsoft")])
    assert counted.per_block is None
    assert counted.operators == {"MatMul": 1, "com.microsoft.FusedMatMul": 1}
