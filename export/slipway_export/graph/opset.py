"""Choice of the ONNX operator set (opset) of a graph, and conversion of graphs from opset 18 to 17.

Torch's exporter writes opset 18 and above. :func:`lower` rewrites the changes of opset 18 that opset 17 can
express, and raises an error that names the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from slipway_export.spec import Component, Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest

# From opset 23 on, RMSNorm is one operator: a denoiser block went from 168 nodes to 68 at opset 20 and to 44
# at opset 23.
DEFAULT_OPSET = 23
_STANDARD_OPSET = 22
LARGEST_OPSET = {
    Engine.ONNXRUNTIME: DEFAULT_OPSET,
    Engine.TORCH: DEFAULT_OPSET,  # This applies to components that PyTorch does not serve.
    Engine.TENSORRT: _STANDARD_OPSET,
    Engine.TENSORRT_RTX: _STANDARD_OPSET,
    Engine.PORTABLE: _STANDARD_OPSET,
}
"""Highest opset of an engine's graphs.

From opset 23 on, attention is one standard operator. ONNX Runtime 1.31 refuses that operator if a mask is
broadcast over the queries, and TensorRT-RTX 1.7 builds no engine with it in float32. Up to opset 22,
attention consists of matrix products and a softmax, which both accept.
"""
EXPORTED_OPSET = 18
"""Lowest opset that torch's exporter writes."""
# IR version from the time of opset 17, because programs of that time refuse files with a later one.
_IR_VERSION = 8
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSumSquare",
)  # fmt: skip


def choose_opset(
    components: Sequence[Component],
    precision_of: Callable[[Component], Precision],
    requested: int | None,
    engine: Engine = Engine.ONNXRUNTIME,
    usual: int | None = None,
) -> int:
    """Return the opset to export components with.

    Args:
        components: Components to export.
        precision_of: Function that gives the precision that the user requested for a component.
        requested: Opset from the user; None for the default, which is the lowest for portable graphs.
        engine: Engine that the graphs are for.
        usual: Default opset of a graph for which upstream has an exporter, if the precision allows it.

    Raises:
        InvalidRequest: The requested opset is above the highest of the engine, or below the lowest of a
            component. The message names each component with its lowest opset.
    """
    lowest = {c.label: c.lowest_opset.get(c.precision(precision_of(c)), EXPORTED_OPSET) for c in components}
    if not lowest:  # All requested components run on other servers.
        return DEFAULT_OPSET
    least = max(lowest.values())
    largest = LARGEST_OPSET[engine]
    default = largest if usual is None else max(usual, least)
    if engine is Engine.PORTABLE:
        default = least
    opset = default if requested is None else requested
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
    """Rewrite a graph from opset 18 to 17 if 17 was requested; other opsets and domains are unchanged.

    Args:
        model: Graph of the exporter, in opset :data:`EXPORTED_OPSET` or above.
        opset: Opset that was requested.
        label: Label of the component, for messages.

    Raises:
        InvalidRequest: An operator has a form that opset 17 cannot express.
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
    """Return whether opset 18 added or changed a node's operator."""
    import onnx

    if node.domain:
        return False
    return bool(onnx.defs.get_schema(node.op_type, EXPORTED_OPSET).since_version == EXPORTED_OPSET)


def _lower_node(node: ir.Node) -> str | None:
    """Rewrite a node in opset 17; return the part that opset 17 cannot express, or None."""
    import onnx

    if not onnx.defs.has(node.op_type, EXPORTED_OPSET - 1):
        return node.op_type
    if node.op_type in _REDUCTIONS:
        return _reduce_by_attribute(node)
    if node.op_type == "Split":
        # Without sizes, opset 17 splits evenly, as 18 does if the number of outputs divides the dimension.
        node.attributes.pop("num_outputs", None)
    before = onnx.defs.get_schema(node.op_type, EXPORTED_OPSET - 1)
    extra = sorted(node.attributes.keys() - before.attributes.keys())
    if extra or len(node.inputs) > before.max_input:
        return f"{node.op_type} with {', '.join(extra) or f'{len(node.inputs)} inputs'}"
    reduction = node.attributes.get("reduction")
    newer = reduction is not None and reduction.as_string() in ("min", "max")
    return f"{node.op_type} by min or max" if newer else None


def _reduce_by_attribute(node: ir.Node) -> str | None:
    """Convert the axes of a reduction from an input (opset 18) to an attribute (opset 17)."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is not None and axes.const_value is None:
        return f"{node.op_type} with computed axes"
    axis_numbers = [] if axes is None or axes.const_value is None else axes.const_value.numpy().tolist()
    empty = node.attributes.pop("noop_with_empty_axes", None)
    if not axis_numbers and empty is not None and empty.as_int():
        return f"{node.op_type} of no axes"
    if axis_numbers:
        node.attributes["axes"] = ir.AttrInt64s("axes", axis_numbers)
    node.resize_inputs(1)
    return None
