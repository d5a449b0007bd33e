"""Graphs that are made for TensorRT, in the models of a repository that ONNX Runtime serves.

exported repository -> each component that is one graph, exported to a file for the other engine and verified
-> the file replaces the graph of the model, whose tensors and configuration stay the same. The quality of a
graph for TensorRT can therefore be measured on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.graph.dialect import refusal
from slipway_export.options import ExportOptions
from slipway_export.repository.config import config_text
from slipway_export.run import components_of, run_export
from slipway_export.spec import Component, Engine, Family
from slipway_export.verification.comparison import widen_bfloat16
from slipway_serving.protocol.errors import InvalidRequest

# Level of ONNX Runtime's optimizations, "basic", at which it does not fuse quantized products. The fused ones
# have another arithmetic than the graph says, and TensorRT computes what the graph says.
_BASIC = -1
_SERVED_GRAPH = "model"


def place_graphs(family: Family, options: ExportOptions, engine: Engine) -> tuple[str, ...]:
    """Replace the graphs of an exported repository by those for another engine.

    A component keeps its graph if an authored model runs it, or if the engine does not have the precision
    for it and the user did not name it.

    Args:
        family: Family of the checkpoint.
        options: Options of the graphs; the repository was exported from the same checkpoint and ranges.
        engine: Engine that the graphs are made for.

    Returns:
        Names of the components whose graphs were replaced.

    Raises:
        InvalidRequest: A named component does not have its precision with the engine, or no component has
            the precision.
        ParityFailed: A graph is outside its bounds.
    """
    assert options.repository is not None  # The caller exported into it.
    with open_checkpoint(family, options.checkpoint) as checkpoint:
        components = components_of(family, checkpoint, replace(options, engine=engine))
    replaced = _replaced(components, options, engine)
    for component in replaced:
        model = options.repository / f"{family.name}_{component.name}"
        graph = model / "1" / "model.onnx"
        exported = replace(
            options,
            repository=None,
            output=graph,
            engine=engine,
            precision=options.requested_precision(component),
            precisions={},
            components=(component.name,),
            force=True,
        )
        run_export(family, exported)
        _widen(graph)
        _use_basic_optimizations(model / "config.pbtxt")
    return tuple(component.name for component in replaced)


def _replaced(components: Sequence[Component], options: ExportOptions, engine: Engine) -> list[Component]:
    found = []
    for component in components:
        if component.graph != _SERVED_GRAPH:
            continue
        problem = refusal(component, options.requested_precision(component), engine)
        if problem is None:
            found.append(component)
        elif component.name in options.precisions:
            raise InvalidRequest(f"bench: {problem}")
    if not found:
        raise InvalidRequest(
            f"bench: precision must be one that a graph for {engine.value} has, got {options.precision.value}"
        )
    return found


def _widen(graph: Path) -> None:
    """Give a graph with bfloat16, which ONNX Runtime's CPU does not compute, float32 with the same values."""
    import onnx_ir as ir

    values = [value for node in ir.load(graph).graph for value in node.outputs]
    if any(value.dtype is ir.DataType.BFLOAT16 for value in values):
        Path(widen_bfloat16(graph, graph.parent)).replace(graph)


def _use_basic_optimizations(path: Path) -> None:
    config = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    config.optimization.graph.level = _BASIC
    path.write_text(config_text(config), encoding="utf-8")
