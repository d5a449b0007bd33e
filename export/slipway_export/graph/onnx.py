"""Export of a component's PyTorch network to an ONNX graph with the component's dynamic shapes.

`torch.onnx.export(dynamo=True)` traces the network once at its opt sizes. The dynamic dimensions follow from
the component's axes (`dynamic.py`), the operator set from `opset.py`. Large weights, and weights that graphs
share (`shared_weights.py`), go to one file of external data beside the graph, which is written as a stream.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from slipway_export.graph import external_weights, rewrite, shared_weights
from slipway_export.graph.dynamic import dynamic_shapes, name_dimensions, related, traced_point
from slipway_export.graph.opset import EXPORTED_OPSET, lower
from slipway_export.graph.rewriter_speed import nodes_compared_first
from slipway_export.graph.traces import Trace
from slipway_export.progress import Report, format_bytes
from slipway_export.spec import Component, Engine, Precision, TensorSpec
from slipway_serving.protocol.axis_expressions import Point, Size
from slipway_serving.protocol.distribution import install_hint
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.runtime.backends.onnxruntime import int8_products

if TYPE_CHECKING:
    import torch

# Most bytes of weights that the graph's own file contains. Such a file is assembled in memory and takes
# several times its size, so the limit is lower than protobuf's 2 GiB.
EXTERNAL_DATA_BYTES = 512 * 2**20


class ExportFailed(SlipwayError):
    """Error for a network that cannot be exported with its component's dynamic shapes; nothing was placed."""

    code = "EXPORT"


def example_inputs(component: Component, point: Point, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Create example inputs for a component: normal noise, ones for masks, integers in their range.

    Args:
        component: Component that takes the inputs.
        point: Size of every axis.
        seed: Seed of the noise; the same seed and point give the same arrays.

    Returns:
        Arrays by input name, in the inputs' shapes and dtypes.
    """
    random = np.random.default_rng(seed)
    return {tensor.name: _example(tensor, point, random) for tensor in component.inputs}


def _example(tensor: TensorSpec, point: Point, random: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = tensor.at(point)
    if tensor.example is not None:
        return tensor.example(shape).astype(tensor.dtype.value)
    if tensor.ones:
        return np.ones(shape, dtype=tensor.dtype.value)
    if tensor.values is not None or not tensor.dtype.is_float:
        low, high = tensor.values or tensor.dtype.values
        return random.integers(low, high, size=shape).astype(tensor.dtype.value)
    return random.standard_normal(shape).astype(tensor.dtype.value)


def export_graph(
    component: Component,
    module: torch.nn.Module,
    path: Path,
    *,
    opset: int,
    precision: Precision = Precision.FP32,
    engine: Engine = Engine.ONNXRUNTIME,
    simplify: bool = False,
    shares: bool = False,
    report: Report = lambda _: None,
    largest_inputs: Mapping[str, float] | None = None,
) -> None:
    """Export a network to `path` (and to `path` + ``.data`` if it is large or shares weights).

    Args:
        component: Description of the component.
        module: Network, in eval mode, in the precision that the component is loaded in for the graph's
            precision (:meth:`Component.loaded_in`).
        path: Path of the ``.onnx`` file.
        opset: ONNX operator set version.
        precision: Precision of the graph.
        engine: Engine, which determines the operators.
        simplify: True to run onnxslim over the graph afterwards.
        shares: True to refer to weights of the graphs beside it, see
            :mod:`slipway_export.graph.shared_weights`.
        report: Callback for a line at each tenth of large weights, and about INT8 weights of a reduced range.
        largest_inputs: Largest absolute inputs of the linear layers, by path, from `calibration.py`; required
            by INT8 and FP8 for TensorRT.

    Raises:
        InvalidRequest: `simplify` is set and onnxslim is not installed, the graph uses operators that the
            opset lacks, or it has nothing to quantize.
        ExportFailed: Torch cannot trace the network with the component's dynamic shapes.
    """
    model = _traced(component, module, engine, max(opset, EXPORTED_OPSET))
    external_weights.bind(model, module)
    _optimize(model)
    external_weights.fold_transposes(model)
    rewrite.unify_norm_types(model)
    _name_tensors(component, model)
    name_dimensions(component, model)
    if engine is Engine.ONNXRUNTIME:
        rewrite.drop_reshapes(model)
    lower(model, opset, component.label)
    if precision.is_quantized:
        _quantize(component, model, precision, engine, report, largest_inputs or {})
    tensors = (value.const_value for value in model.graph.initializers.values())
    size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    if shares and not simplify:
        shared_weights.save(model, path)
        return
    if size > EXTERNAL_DATA_BYTES:
        ir.save(
            model,
            path,
            external_data=f"{path.name}.data",
            callback=_writing_progress(component.label, size, report),
        )
    else:
        ir.save(model, path)
    if simplify:
        _simplify(path, size)
    if shares:
        shared_weights.save_again(path)


def _writing_progress(label: str, size: int, report: Report) -> Callable[[ir.TensorProtocol, Any], None]:
    """Return a callback that reports the progress of writing a graph's weights, at each tenth of them."""
    reported = 0

    def report_tensor(tensor: ir.TensorProtocol, place: Any) -> None:
        nonlocal reported
        written = place.offset + tensor.nbytes
        if 10 * written // size > reported:
            reported = 10 * written // size
            report(f"{label}: writing weights, {format_bytes(written)} of {format_bytes(size)}")

    return report_tensor


def _optimize(model: ir.Model) -> None:
    """Run the same optimizations as torch's exporter, but leave the weights on disk."""
    from onnxscript import optimizer
    from onnxscript.rewriter import onnx_fusions

    with _quiet(), nodes_compared_first():
        optimizer.optimize_ir(model, should_fold=external_weights.keeps_weights)
        onnx_fusions.fuse(model)


def _name_tensors(component: Component, model: ir.Model) -> None:
    """Name a graph's inputs and outputs as in the description, after optimization, which changes names."""
    for tensor, value in (
        *zip(component.inputs, model.graph.inputs, strict=True),
        *zip(component.outputs, model.graph.outputs, strict=True),
    ):
        value.name = tensor.name


def _quantize(
    component: Component,
    model: ir.Model,
    precision: Precision,
    engine: Engine,
    report: Report,
    largest_inputs: Mapping[str, float],
) -> None:
    """Quantize a graph in the dialect of its engine."""
    if engine.is_tensorrt:
        from slipway_export.graph import qdq

        count = qdq.quantize(model, precision, component.keep_float, component.outliers, largest_inputs)
    else:
        count = _quantize_for_onnxruntime(component, model, precision, engine, report)
    if not count:
        raise InvalidRequest(
            f"{component.label}: precision {precision.value} must have matrix products to quantize, got none"
        )


def _quantize_for_onnxruntime(
    component: Component, model: ir.Model, precision: Precision, engine: Engine, report: Report
) -> int:
    """Quantize a graph for ONNX Runtime, also for engine ``portable``; return the number of products."""
    from slipway_export.graph.quantize import quantize

    if precision is Precision.INT8 and int8_products.largest_exact_weight() < int8_products.FULL:
        report(
            f"{component.label}: INT8 weights of -{int8_products.REDUCED} to {int8_products.REDUCED},"
            " since this processor has no VNNI and clips larger products"
        )
    keep, outliers = component.keep_float, component.outliers
    if engine is Engine.PORTABLE:  # Portable graphs have no operator for block-quantized weights.
        keep, outliers = (*keep, *outliers), ()
    return quantize(model, precision, keep, outliers)


@contextmanager
def _onnxruntime_dialect(component: Component, module: torch.nn.Module) -> Iterator[None]:
    from slipway_export.graph.lowering import fused_attention

    with fused_attention(), component.lower(module):
        yield


def _traced(component: Component, module: torch.nn.Module, engine: Engine, opset: int) -> ir.Model:
    """Return the traced graph of a network, from the folder of traces if it is there."""
    inputs, shapes = example_inputs(component, traced_point(component)), dynamic_shapes(component, module)
    trace = Trace(component, module, inputs, shapes, engine=engine, opset=opset)
    standard = engine is not Engine.ONNXRUNTIME
    dialect = component.restate(module) if standard else _onnxruntime_dialect(component, module)
    with trace.alone(), dialect:
        if (model := trace.kept(module)) is None:
            model = _trace(component, module, inputs, shapes, opset)
            trace.keep(model)
    return model


def _trace(
    component: Component,
    module: torch.nn.Module,
    inputs: dict[str, Any],
    shapes: dict[str, Any],
    opset: int,
) -> ir.Model:
    """Trace a network with the dynamic shapes of its component."""
    import torch

    try:
        with _quiet(), torch.no_grad(), related(component, module):
            program = torch.onnx.export(
                module,
                tuple(torch.from_numpy(array) for array in inputs.values()),
                dynamo=True,
                dynamic_shapes=shapes,
                opset_version=opset,
                optimize=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise ExportFailed(
            f"{component.label}: the network must be one that torch.export can trace with dynamic"
            f" {_dimensions(component)}, got {_reason(error)}"
        ) from error
    if program is None:  # This happens only without dynamo, but the return type includes None.
        raise ExportFailed(f"{component.label}: torch.onnx.export returned no program")
    return program.model


def _dimensions(component: Component) -> str:
    sizes = {str(size) for tensor in component.inputs for size in tensor.sizes if isinstance(size, Size)}
    return ", ".join(sorted(sizes)) or "nothing"


def _reason(error: BaseException) -> str:
    """Return the beginning of the exporter's error message, without its advice."""
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(cause).__name__


def _simplify(path: Path, weight_bytes: int) -> None:
    """Run onnxslim over a graph file."""
    try:
        import onnxslim
    except ModuleNotFoundError:
        raise InvalidRequest(f"simplify requires onnxslim; try {install_hint('export')}") from None
    import onnx

    slimmed = onnxslim.slim(onnx.load(path))
    data = path.with_name(path.name + ".data")
    data.unlink(missing_ok=True)
    external = weight_bytes > EXTERNAL_DATA_BYTES
    onnx.save(slimmed, path, save_as_external_data=external, location=data.name if external else None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's progress output, registry warnings and partial graphs in the terminal.

    Errors are exceptions and still propagate; the suppressed output contains nothing beyond them.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        output = io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(output), redirect_stderr(output):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
