"""Quantization of graphs for TensorRT: QuantizeLinear and DequantizeLinear around the matrix products.

TensorRT is strongly typed, so the precision of a product is what the graph says. INT8 and FP8 (E4M3) weights
have a scale for each output channel, and the input of a product has one static scale, from calibration
(`calibration.py`). INT4 quantizes only the weights, in blocks of 32 along the input. The other precisions
quantize only the weights too if a product's input has outliers, or a single row per batch entry, as the
modulation by a timestep has. All zero points are zero.

Everything around the products stays in the precision of the graph, usually a half precision, for which
TensorRT has a fused attention kernel. Each weight is quantized when the graph is written, one at a time, so
that a graph of any size is quantized in the memory of its largest weight. ONNX Runtime's own quantizer loads
the whole graph and all activations of calibration, and its INT4 kernel writes negative scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from slipway_export.graph.quantize import BLOCK, is_product, lazy, matches, register, scopes, weight_of
from slipway_export.spec import Precision

Array = np.ndarray[Any, Any]

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Smallest scale: 2**-20 is a subnormal float16 that is still exact to 6 percent.
_SMALLEST_SCALE = 2.0**-20
# Largest values of a block, as parts of its largest absolute value, among which INT4 chooses. A smaller one
# saturates a few values and rounds all others to finer steps. On normal noise, the three reduce the relative
# L2 error of the weights from 0.097 to 0.088; ONNX Runtime's kernel has 0.086.
_BLOCK_RANGES = (1.0, 0.93, 0.86)

# Values of a weight for which block scales are chosen at once.
_AT_ONCE = 2**24


@dataclass(frozen=True)
class _Format:
    """Element type of quantized values.

    Args:
        dtype: Type in the graph.
        largest: Largest value, to which the largest absolute value is scaled.
        smallest: Smallest value.
    """

    dtype: ir.DataType
    largest: float
    smallest: float

    def quantize(self, values: Array, scale: Array) -> Array:
        """Divide values by their scale, and round and saturate the result, which stays float32."""
        scaled = values / scale.astype(np.float32)
        if self.dtype is not ir.DataType.FLOAT8E4M3FN:
            np.round(scaled, out=scaled)
        return np.clip(scaled, self.smallest, self.largest, out=scaled)


_FORMATS = {
    Precision.INT8: _Format(ir.DataType.INT8, 127.0, -127.0),
    Precision.FP8: _Format(ir.DataType.FLOAT8E4M3FN, 448.0, -448.0),
    Precision.INT4: _Format(ir.DataType.INT4, 7.0, -8.0),
}


def quantize(
    model: ir.Model,
    precision: Precision,
    keep_float: Sequence[str],
    outliers: Sequence[str],
    largest_inputs: Mapping[str, float],
) -> int:
    """Quantize the matrix products of a graph.

    Args:
        model: Graph in float32 or a half precision, which is changed in place.
        precision: INT8, FP8 or INT4.
        keep_float: Patterns of module paths, such as ``*.proj_out``, whose products stay as they are.
        outliers: Patterns of module paths whose products keep their inputs as they are.
        largest_inputs: Largest absolute inputs of the products by module path, for INT8 and FP8. A product
            that needs one but has none stays as it is.

    Returns:
        Number of quantized products.
    """
    form = _FORMATS[precision]
    products = [node for node in model.graph if is_product(node, _FLOATS) and not matches(node, keep_float)]
    weights_only = {
        node
        for node in products
        if precision is Precision.INT4 or matches(node, outliers) or _has_single_rows(model.graph, node)
    }
    ranges: dict[ir.Value, float] = {}
    for node in products:
        source = node.inputs[0]
        assert source is not None  # A product has two inputs.
        found = next(
            (largest_inputs[path] for path in reversed(scopes(node)) if path in largest_inputs), None
        )
        if node not in weights_only and found is not None:
            ranges[source] = max(found, ranges.get(source, 0.0))
    inputs: dict[ir.Value, ir.Value] = {}
    count = 0
    for node in products:
        source = node.inputs[0]
        if node not in weights_only:
            if source not in ranges:
                continue
            if source not in inputs:
                inputs[source] = _quantize_input(model.graph, node, source, ranges[source], form)
            node.replace_input_with(0, inputs[source])
        _quantize_weight(model.graph, node, form)
        count += 1
    return count


def _has_single_rows(graph: ir.Graph, node: ir.Node) -> bool:
    """Return whether the input of a product has one row per batch entry: [batch, in].

    Reading the weight takes most of the time of such a product. The few values of its input also give no
    reliable range: in a tiny FramePack transformer, modulations of verification's timesteps saturated at the
    range of others, which took the relative L2 error from 0.03 to 0.17 in INT8.
    """
    source, first = node.inputs[0], graph.inputs[0]
    if source is None or source.shape is None or not first.shape:
        return False
    return len(source.shape) == 2 and str(source.shape[0]) == str(first.shape[0])


def _quantize_input(
    graph: ir.Graph, node: ir.Node, source: ir.Value, largest: float, form: _Format
) -> ir.Value:
    """Quantize and dequantize an activation before a node, with one scale; return the result."""
    dtype = source.dtype
    assert dtype is not None  # Every value of a traced graph has a type.
    # An input that was all zeros says nothing about the scale.
    scale = _scales(np.float32(largest or form.largest), form, dtype)
    constants = [
        register(graph, ir.tensor(scale, name=f"{source.name}_scale")),
        register(graph, ir.tensor(np.zeros((), form.dtype.numpy()), name=f"{source.name}_zero_point")),
    ]
    quantized = ir.node("QuantizeLinear", [source, *constants])
    restored = ir.node("DequantizeLinear", [quantized.outputs[0], *constants])
    quantized.outputs[0].dtype, quantized.outputs[0].shape = form.dtype, source.shape
    restored.outputs[0].dtype, restored.outputs[0].shape = dtype, source.shape
    graph.insert_before(node, [quantized, restored])
    return restored.outputs[0]


def _quantize_weight(graph: ir.Graph, node: ir.Node, form: _Format) -> None:
    """Replace the weight of a product by quantized values [in, out] and a DequantizeLinear."""
    before = node.inputs[1]
    assert before is not None and before.dtype is not None  # is_product has checked it.
    name, read, shape = weight_of(node)
    blocks = form.dtype is ir.DataType.INT4
    scale_shape = (-(-shape[0] // BLOCK), shape[1]) if blocks else (shape[1],)
    attributes: dict[str, int] = {"axis": 0, "block_size": BLOCK} if blocks else {"axis": 1}
    make = partial(_quantized, read, form, before.dtype)
    restored = f"{name}_dequantized"
    values = lazy(graph, f"{name}_quantized", lambda: make()[0], form.dtype, shape)
    scales = lazy(graph, f"{name}_scale", lambda: make()[1], before.dtype, scale_shape)
    zeros = lazy(
        graph,
        f"{name}_zero_point",
        lambda: np.zeros(scale_shape, form.dtype.numpy()),
        form.dtype,
        scale_shape,
    )
    dequantize = ir.node("DequantizeLinear", [values, scales, zeros], attributes)
    out = dequantize.outputs[0]
    out.name, out.dtype, out.shape = f"{restored}_{node.name}", before.dtype, ir.Shape(shape)
    graph.insert_before(node, dequantize)
    node.replace_input_with(1, out)
    node.attributes.pop("transB", None)  # The quantized weight is [in, out].
    if not before.uses():
        graph.initializers.pop(str(before.name))


def _quantized(read: Callable[[], Array], form: _Format, dtype: ir.DataType) -> tuple[Array, Array]:
    """Quantize a weight [in, out]; return its values and its scales, by block and channel or by channel."""
    weight = read().astype(np.float32)
    if form.dtype is not ir.DataType.INT4:
        scale = _scales(np.maximum(weight.max(axis=0), -weight.min(axis=0)), form, dtype)
        return form.quantize(weight, scale).astype(form.dtype.numpy()), scale
    rows, columns = weight.shape
    values, scales = [], []
    step = BLOCK * max(1, _AT_ONCE // (BLOCK * columns))
    for begin in range(0, rows, step):
        part = weight[begin : begin + step]
        blocks = np.pad(part, ((0, -len(part) % BLOCK), (0, 0))).reshape(-1, BLOCK, columns)
        scales.append(_block_scales(blocks, form, dtype))
        quantized = form.quantize(blocks, scales[-1][:, None]).reshape(-1, columns)[: len(part)]
        values.append(quantized.astype(form.dtype.numpy()))
    return np.concatenate(values), np.concatenate(scales)


def _block_scales(blocks: Array, form: _Format, dtype: ir.DataType) -> Array:
    """Return the scale of each block [blocks, BLOCK, out] that changes its values the least."""
    largest = np.abs(blocks).max(axis=1)
    candidates = np.stack([_scales(part * largest, form, dtype) for part in _BLOCK_RANGES])
    errors = []
    for scale in candidates:
        wide = scale[:, None].astype(np.float32)
        errors.append(np.square(form.quantize(blocks, wide) * wide - blocks).sum(axis=1))
    best: Array = np.take_along_axis(candidates, np.argmin(errors, axis=0)[None], axis=0)[0]
    return best


def _scales(largest: Array | np.float32, form: _Format, dtype: ir.DataType) -> Array:
    """Return the scales, in the graph's element type, that map the largest values to the format's largest."""
    scale = np.asarray(largest, np.float32) / np.float32(form.largest)
    return np.maximum(scale, np.float32(_SMALLEST_SCALE)).astype(dtype.numpy())
