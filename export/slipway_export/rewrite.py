"""Rewrites of an exported graph that keep its result: fewer nodes, fewer passes over activations.

They work on any family's graph and only where the pattern is whole; verification runs on what they
leave.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def drop_reshapes(model: ir.Model) -> int:
    """Skip a Reshape of a Reshape, and drop those whose shapes, symbols and all, are equal.

    Returns:
        Number of nodes that were dropped.
    """
    for node in list(model.graph):
        if node.op_type != "Reshape" or node.domain:
            continue
        source, out = node.inputs[0], node.outputs[0]
        while source is not None and (before := source.producer()) is not None:
            if before.op_type != "Reshape" or not _absolute(node):
                break
            source = before.inputs[0]
            node.replace_input_with(0, source)
        if source is not None and _same_shape(source, out) and not out.is_graph_output():
            out.replace_all_uses_with(source)
    dropped = 0
    for node in reversed(list(model.graph)):
        unused = not any(out.uses() or out.is_graph_output() for out in node.outputs)
        if node.op_type in ("Reshape", "Concat", "Shape") and unused:
            model.graph.remove(node, safe=True)
            dropped += 1
    _drop_unused_weights(model)
    return dropped


def _drop_unused_weights(model: ir.Model) -> None:
    """Remove the shapes that the dropped nodes took; ONNX Runtime warns of weights that nothing takes."""
    outputs = {out.name for out in model.graph.outputs}
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and name not in outputs:
            del model.graph.initializers[name]


def _absolute(node: ir.Node) -> bool:
    """Whether a Reshape copies no dimension of its input (a 0 in its shape, when allowzero is off)."""
    allow = node.attributes.get("allowzero")
    if allow is not None and allow.as_int():
        return True
    shape = node.inputs[1].const_value if node.inputs[1] is not None else None
    return shape is not None and bool(np.all(shape.numpy() != 0))


def _same_shape(a: ir.Value, b: ir.Value) -> bool:
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    return all(_dim(x) is not None and _dim(x) == _dim(y) for x, y in zip(a.shape, b.shape, strict=True))


def _dim(size: object) -> object:
    return size if isinstance(size, int) else getattr(size, "value", None)
