"""Checks of the precisions and operators that the graphs of an engine may use.

The precision is checked before any work, and the operators in every graph that was exported, so that the
statements about an engine's graphs hold for every family. The readers of an engine are the programs that load
its graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slipway_export.spec import Component, Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    import onnx

_HALVES = (Precision.FP16, Precision.BF16)
# Quantized graphs for ONNX Runtime contain DynamicQuantizeLinear and MatMulInteger (int8) or com.microsoft's
# MatMulNBits (int4), those for TensorRT QuantizeLinear and DequantizeLinear. A float64 graph needs float64
# operators, and TensorRT computes none in float64.
_TENSORRT = (Precision.FP32, *_HALVES, Precision.INT8, Precision.FP8, Precision.INT4)
PRECISIONS = {
    Engine.ONNXRUNTIME: tuple(precision for precision in Precision if precision is not Precision.FP8),
    Engine.TENSORRT: _TENSORRT,
    Engine.TENSORRT_RTX: _TENSORRT,
    Engine.PORTABLE: (Precision.FP32, *_HALVES, Precision.INT8),
    Engine.TORCH: (Precision.FP64, Precision.FP32, *_HALVES),
}
# Standard operators that the parser of TensorRT-RTX 1.7 says it does not support; a test asks it where it is
# installed. An operator may still be refused for its types or attributes, which only the parser and builder
# know.
TENSORRT_LACKS = {
    "AffineGrid", "Bernoulli", "BitCast", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
    "CenterCropPad", "Col2Im", "Compress", "ConcatFromSequence", "ConvInteger", "CumProd", "DFT",
    "DeformConv", "Det", "DynamicQuantizeLinear", "ImageDecoder", "MatMulInteger", "MaxRoiPool", "MaxUnpool",
    "MelWeightMatrix", "Multinomial", "NegativeLogLikelihoodLoss", "Optional", "OptionalGetElement",
    "OptionalHasElement", "QLinearConv", "QLinearMatMul", "RegexFullMatch", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
    "SoftmaxCrossEntropyLoss", "SplitToSequence", "StringConcat", "StringNormalizer", "StringSplit",
    "TfIdfVectorizer", "Unique",
}  # fmt: skip


def check_precision(engine: Engine, precision: Precision) -> None:
    """Check that an engine's readers support the graphs of a precision.

    Raises:
        InvalidRequest: The engine lacks the precision. The message names those that it has.
    """
    known = PRECISIONS[engine]
    if precision not in known:
        names = ", ".join(each.value for each in known)
        other = "tensorrt" if precision is Precision.FP8 else "onnxruntime"
        raise InvalidRequest(
            f"export: precision must be one of {names} for engine {engine.value}, whose readers do not know"
            f" the operators of others, got {precision.value}; try --precision fp16, or --engine {other}"
        )


def offered(component: Component, engine: Engine) -> tuple[Precision, ...]:
    """Return the precisions that both the engine and the component support."""
    excluded = component.tensorrt_excludes if engine.is_tensorrt else {}
    able = component.tolerance.keys() - excluded.keys()
    return tuple(precision for precision in PRECISIONS[engine] if precision in able)


def refusal(component: Component, precision: Precision, engine: Engine) -> str | None:
    """Return why a component cannot be exported in a precision for an engine; None if it can."""
    able = offered(component, engine)
    if precision in able:
        return None
    fix = ""
    excluded = component.tensorrt_excludes.get(precision) if engine.is_tensorrt else None
    because = "" if excluded is None else f" ({excluded})"
    if engine is Engine.TORCH and precision.is_quantized:
        fix = f"; try --weights {component.name}={precision.value}"
    return (
        f"precision of {component.name} must be one of {', '.join(able)} with engine {engine.value}{because},"
        f" got {precision.value}{fix}"
    )


def check_operators(path: Path, engine: Engine, label: str) -> None:
    """Check that an engine's readers support all operators of a graph.

    Args:
        path: Path of the graph.
        engine: Engine that the graph was exported for.
        label: Label of the component, for messages.

    Raises:
        InvalidRequest: The graph uses operators that they do not support. The message names the operators.
    """
    if engine is not Engine.ONNXRUNTIME and (unknown := unknown_operators(path, engine)):
        raise InvalidRequest(
            f"{label}: operators must be standard ones that readers of engine {engine.value} know, got"
            f" {', '.join(sorted(unknown))}; try --engine onnxruntime"
        )


def unknown_operators(path: Path, engine: Engine) -> set[str]:
    """Return the operators of a graph that an engine's readers do not support."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    bodies = (model.graph.node, *(function.node for function in model.functions))
    local = {(function.domain, function.name) for function in model.functions}
    return {
        f"{node.domain}.{node.op_type}".removeprefix(".")
        for body in bodies
        for node in _all_nodes(body)
        if (node.domain, node.op_type) not in local and not _is_known(node, engine)
    }


def _is_known(node: onnx.NodeProto, engine: Engine) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    return not engine.is_tensorrt or node.op_type not in TENSORRT_LACKS


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of their subgraphs (of a loop, a scan, a branch)."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _all_nodes(body.node)
