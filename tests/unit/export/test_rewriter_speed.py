"""A pattern of several outputs, where the graph has none of it, and where it has."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnxscript.rewriter import pattern

from slipway_export.graph.rewriter_speed import nodes_compared_first


def slices(op, x, start, middle, end):  # type: ignore[no-untyped-def]
    return op.Slice(x, start, middle), op.Slice(x, middle, end)


def halves(op, x, start, middle, end):  # type: ignore[no-untyped-def]
    return op.Halves(x, _outputs=2, _domain="test")


RULES = pattern.RewriteRuleSet([pattern.RewriteRule(slices, halves)])


class Listed(Exception):
    """The graph's nodes were listed."""


class Unlisted:
    """A graph whose nodes nobody may list."""

    graph = None

    def __iter__(self) -> None:
        raise Listed


def graph() -> ir.Model:
    """x -> Neg -> two slices."""
    x, *bounds = (ir.val(name, ir.DataType.FLOAT, [4]) for name in ("x", "start", "middle", "end"))
    turned = ir.node("Neg", [x])
    parts = [ir.node("Slice", [turned.outputs[0], *pair]) for pair in (bounds[:2], bounds[1:])]
    outputs = [part.outputs[0] for part in parts]
    made = ir.Graph([x, *bounds], outputs, nodes=[turned, *parts], opset_imports={"": 20}, name="g")
    return ir.Model(made, ir_version=10)


def test_rule_is_applied_as_before_when_nodes_are_compared_first() -> None:
    plain, compared = graph(), graph()
    assert RULES.apply_to_model(plain) == 1
    with nodes_compared_first():
        assert RULES.apply_to_model(compared) == 1
    kinds = [node.op_type for node in compared.graph]
    assert kinds == [node.op_type for node in plain.graph]
    assert "Halves" in kinds


def test_nodes_are_not_listed_when_the_node_is_of_another_operator() -> None:
    model = graph()
    (rule,), (turned, cut, _) = RULES.rules, list(model.graph)
    with nodes_compared_first():
        assert not rule.match(model, Unlisted(), turned)
        with pytest.raises(Listed):
            rule.match(model, Unlisted(), cut)
    with pytest.raises(Listed):
        rule.match(model, Unlisted(), turned)
