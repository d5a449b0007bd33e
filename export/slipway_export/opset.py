"""ONNX operator sets: which one a graph is written in, and how a graph of 18 becomes one of 17.

torch's exporter writes 18 and above. Of what the operators of a graph gained with 18, :func:`lower` takes
back what 17 can say too, and refuses the rest by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from slipway_export.spec import Component, Engine, Precision
from slipway_serving.errors import InvalidRequest

# From 23 on RMSNorm is one operator: 168 nodes a denoiser block became 68 at opset 20 and 44 at 23.
DEFAULT_OPSET = 23
_STANDARD_OPSET = 22
LARGEST_OPSET = {
    Engine.ONNXRUNTIME: DEFAULT_OPSET,
    Engine.TORCH: DEFAULT_OPSET,  # of the components beside those that PyTorch serves
    Engine.TENSORRT: _STANDARD_OPSET,
    Engine.PORTABLE: _STANDARD_OPSET,
}
"""The highest operator set of an engine's graphs.

From 23 on attention is one standard operator. ONNX Runtime 1.31 refuses that operator where a mask is
broadcast over the queries, and TensorRT-RTX 1.7 builds no engine with it in float32. Up to 22 attention is
written as products and a softmax, which both take.
"""
EXPORTED_OPSET = 18
"""The lowest that torch's exporter writes."""
# Of the years of opset 17; its readers refuse files of a later one.
_IR_VERSION = 8
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSumSquare",
)  # fmt: skip


def choose_opset(
    components: Sequence[Component],
    precision_of: Callable[[Component], Precision],
    asked: int | None,
    engine: Engine = Engine.ONNXRUNTIME,
    usual: int | None = None,
) -> int:
    """Return the opset to export components with.

    Args:
        components: what is exported.
        precision_of: the precision that the user asked for, for each.
        asked: the opset that the user asked for; None for the default: the lowest for portable graphs.
        engine: that the graphs are for.
        usual: the default of a graph that upstream has an exporter for, where the precision allows it.

    Raises:
        InvalidRequest: the asked one is above the highest of the engine, or below the lowest of a component,
            each of which the message names with its own.
    """
    lowest = {c.label: c.lowest_opset.get(c.precision(precision_of(c)), EXPORTED_OPSET) for c in components}
    if not lowest:  # All that was asked for is on other servers.
        return DEFAULT_OPSET
    least = max(lowest.values())
    largest = LARGEST_OPSET[engine]
    default = largest if usual is None else max(usual, least)
    if engine is Engine.PORTABLE:
        default = least
    opset = default if asked is None else asked
    if not least <= opset <= largest:
        each = ", ".join(f"{label} {value}" for label, value in lowest.items())
        precisions = ", ".join(dict.fromkeys(precision_of(component).value for component in components))
        raise InvalidRequest(
            f"opset-version must be {least} to {largest} for {precisions}, got {opset} with engine"
            f" {engine.value};"
            f" the lowest of each component: {each}"
        )
    return opset


def lower(model: ir.Model, opset: int, label: str) -> None:
    """Rewrite a graph of opset 18 in 17; other operator sets and other domains stay as they are.

    Args:
        model: of the exporter, in opset :data:`EXPORTED_OPSET` or above.
        opset: that was asked for.
        label: of the component, for messages.

    Raises:
        InvalidRequest: an operator says what 17 cannot.
    """
    if opset >= EXPORTED_OPSET:
        return
    problems = {
        problem for node in model.graph.all_nodes() if _changed(node) and (problem := _lower_node(node))
    }
    if problems:
        raise InvalidRequest(
            f"{label}: opset-version must be at least {EXPORTED_OPSET}, got {opset}, which lacks"
            f" {', '.join(sorted(problems))}"
        )
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del model.graph.initializers[name]
    model.opset_imports[""] = opset
    model.ir_version = _IR_VERSION


def _changed(node: ir.Node) -> bool:
    """Whether a node's operator is one that came or changed with 18."""
    import onnx

    if node.domain:
        return False
    return bool(onnx.defs.get_schema(node.op_type, EXPORTED_OPSET).since_version == EXPORTED_OPSET)


def _lower_node(node: ir.Node) -> str | None:
    """Rewrite a node in opset 17; return what it says that 17 cannot."""
    import onnx

    if not onnx.defs.has(node.op_type, EXPORTED_OPSET - 1):
        return node.op_type
    if node.op_type in _REDUCTIONS:
        return _reduce_by_attribute(node)
    if node.op_type == "Split":
        # Without sizes 17 splits evenly, as 18 does where the number of outputs divides the dimension.
        node.attributes.pop("num_outputs", None)
    before = onnx.defs.get_schema(node.op_type, EXPORTED_OPSET - 1)
    extra = sorted(node.attributes.keys() - before.attributes.keys())
    if extra or len(node.inputs) > before.max_input:
        return f"{node.op_type} with {', '.join(extra) or f'{len(node.inputs)} inputs'}"
    reduction = node.attributes.get("reduction")
    newer = reduction is not None and reduction.as_string() in ("min", "max")
    return f"{node.op_type} by min or max" if newer else None


def _reduce_by_attribute(node: ir.Node) -> str | None:
    """Turn the axes of a reduction, an input since 18, into the attribute that they were."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is not None and axes.const_value is None:
        return f"{node.op_type} with computed axes"
    places = [] if axes is None or axes.const_value is None else axes.const_value.numpy().tolist()
    empty = node.attributes.pop("noop_with_empty_axes", None)
    if not places and empty is not None and empty.as_int():
        return f"{node.op_type} of no axes"
    if places:
        node.attributes["axes"] = ir.AttrInt64s("axes", places)
    node.resize_inputs(1)
    return None
