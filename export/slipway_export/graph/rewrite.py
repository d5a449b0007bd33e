"""Rewrites of an exported graph that preserve its result: fewer nodes, fewer passes over activations.

They apply to the graph of any family, and only where the whole pattern matches. Verification runs on the
rewritten graph.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def drop_reshapes(model: ir.Model) -> int:
    """Bypass a Reshape of a Reshape, and drop those whose input and output shapes, with symbols, are equal.

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


def unify_norm_types(model: ir.Model) -> int:
    """Compute each RMSNormalization in one element type, and cast its result back to its original type.

    A network in half precision may normalize float32 activations with a weight in half precision. ONNX allows
    the two types, but ONNX Runtime 1.31 expands the operator into a product of both and refuses the graph.

    Returns:
        Number of operators that had two types.
    """
    changed = 0
    for node in list(model.graph):
        if node.op_type != "RMSNormalization" or node.domain:
            continue
        narrow, wide = sorted((_dtype(value) for value in node.inputs[:2]), key=lambda dtype: dtype.itemsize)
        if narrow is wide:
            continue
        for place, value in enumerate(node.inputs[:2]):
            if value is not None and _dtype(value) is not wide:
                node.replace_input_with(place, _cast(model, node, value, wide))
        out = node.outputs[0]
        asked = _dtype(out)
        if asked is not wide:
            out.dtype = wide
            uses = list(out.uses())
            back = _cast(model, node, out, asked, after=True)
            for user, place in uses:
                user.replace_input_with(place, back)
        changed += 1
    return changed


def _cast(
    model: ir.Model, node: ir.Node, value: ir.Value, dtype: ir.DataType, *, after: bool = False
) -> ir.Value:
    """Return a value in another element type, cast before a node or after it."""
    cast = ir.node("Cast", [value], {"to": dtype})
    out = cast.outputs[0]
    out.dtype, out.shape = dtype, value.shape
    (model.graph.insert_after if after else model.graph.insert_before)(node, cast)
    return out


def _dtype(value: ir.Value | None) -> ir.DataType:
    """Return the element type of a value, which every value of a traced graph has."""
    dtype = None if value is None else value.dtype
    if dtype is None and value is not None and value.const_value is not None:
        dtype = value.const_value.dtype
    if dtype is None:
        raise TypeError(f"rewrite: an input of RMSNormalization must have an element type, got {value}")
    return dtype


def _drop_unused_weights(model: ir.Model) -> None:
    """Remove the shapes that dropped nodes used, since ONNX Runtime warns about unused weights."""
    outputs = {out.name for out in model.graph.outputs}
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and name not in outputs:
            del model.graph.initializers[name]


def _absolute(node: ir.Node) -> bool:
    """Return whether a Reshape copies no dimension of its input (a 0 in its shape, when allowzero is off)."""
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
