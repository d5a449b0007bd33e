"""Quantization of graphs for ONNX Runtime: dynamic INT8, INT4 weights in blocks, large tables in float16.

Quantization changes products with a weight, and lookups in a large table. Nodes in modules that a component
names as sensitive, by path, stay as they are. Each weight is quantized when the graph is written, one at a
time, with ONNX Runtime's method. Verification compares the result with the float32 network like any other
graph.

INT8 gives all activations of a product a single scale, which a few outliers can dominate; INT4 has a scale
for each block of 32. Products whose input has outliers, which are also named by path, keep their activations
in float32, and have weights in blocks in both precisions. A table is not a product: only a few of its rows
are read, and without arithmetic, so it is stored in float16 and each row is widened when it is read. In 8
bits the table caused the largest error of a text encoder with outliers.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from slipway_export.graph.external_weights import Weight
from slipway_export.spec import Precision
from slipway_serving.runtime.backends.onnxruntime import int8_products

Array = np.ndarray[Any, Any]
Rewrite = Callable[[ir.Graph, ir.Node], list[ir.Node]]

_SCOPES = "pkg.torch.onnx.name_scopes"
BLOCK = 32
"""Number of quantized weights that share a scale."""
# Accuracy levels of MatMulNBits: activations in float32, or in 8 bits with a scale for each block.
_FLOAT32, _IN_BLOCKS = 1, 4
LARGE_TABLE = 2**20
"""Smallest number of values for which a table is stored in float16: 4 MiB in float32.

A smaller table is not worth the additional node.
"""


def quantize(
    model: ir.Model, precision: Precision, keep_float: Sequence[str], outliers: Sequence[str] = ()
) -> int:
    """Quantize the matrix products of a graph, and its large tables.

    Args:
        model: Float32 graph, which is changed in place.
        precision: INT8 or INT4.
        keep_float: Patterns of module paths, such as ``*.proj_out``, whose products and tables stay in
            float32.
        outliers: Patterns of module paths whose products get weights in blocks for INT8 too, and keep their
            activations in float32.

    Returns:
        Number of quantized products.
    """
    dynamic = _Dynamic()
    if precision is Precision.INT8:
        model.metadata_props[int8_products.PROPERTY] = str(int8_products.largest_exact_weight())
    nodes = [node for node in model.graph if not matches(node, keep_float)]
    products = [node for node in nodes if is_product(node)]
    for node in products:
        wide = matches(node, outliers)
        rewrite: Rewrite = dynamic
        if wide or precision is Precision.INT4:
            bits, level = (4 if precision is Precision.INT4 else 8), (_FLOAT32 if wide else _IN_BLOCKS)
            rewrite = partial(_blocks, bits, level)
            model.opset_imports.setdefault("com.microsoft", 1)
        _replace(model.graph, node, rewrite(model.graph, node))
    for node in nodes:
        if _is_large_lookup(node):
            _replace(model.graph, node, _lookup(model.graph, node), weight=0)
    return len(products)


def is_product(node: ir.Node, dtypes: Collection[ir.DataType] = (ir.DataType.FLOAT,)) -> bool:
    """Return whether a node multiplies by a weight matrix that is stored in the graph.

    Args:
        node: Node of a graph.
        dtypes: Element types that the weight may have.
    """
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return False
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or weight.const_value.dtype not in dtypes:
        return False
    plain = all(
        node.attributes[name].value == default
        for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))
        if name in node.attributes
    )
    return plain and len(weight.const_value.shape) == 2


def matches(node: ir.Node, patterns: Sequence[str]) -> bool:
    """Return whether a pattern names the path of a module that a node belongs to."""
    return any(fnmatch.fnmatchcase(path, pattern) for path in scopes(node) for pattern in patterns)


def scopes(node: ir.Node) -> list[str]:
    """Return the paths of the modules that a node belongs to, from the outermost to the innermost."""
    paths: list[str] = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    return paths


def weight_of(node: ir.Node) -> tuple[str, Callable[[], Array], tuple[int, int]]:
    """Return name, values and shape [in, out] of the weight that a product multiplies by."""
    value = node.inputs[1]
    assert value is not None and value.const_value is not None  # is_product has checked it.
    tensor = value.const_value
    turned = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    rows, columns = (int(size) for size in tensor.shape.numpy())
    shape = (columns, rows) if turned else (rows, columns)
    return str(value.name), lambda: tensor.numpy().T if turned else tensor.numpy(), shape


def lazy(
    graph: ir.Graph, name: str, make: Callable[[], Array], dtype: ir.DataType, shape: Sequence[int]
) -> ir.Value:
    """Return a tensor of a graph by name; if missing, add one that is computed when the graph is written."""
    known = graph.initializers.get(name)
    if known is not None:
        return known
    tensor = ir.LazyTensor(lambda: ir.tensor(make(), name=name), dtype, ir.Shape(shape), name=name)
    return register(graph, tensor)


def register(graph: ir.Graph, tensor: ir.TensorProtocol) -> ir.Value:
    """Add a tensor to a graph and return its value."""
    value = ir.Value(
        name=tensor.name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def _blocks(bits: int, level: int, graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    """Return MatMulNBits in place of a product: weights of 4 or 8 bits in blocks along its inputs.

    Args:
        bits: Bits of a weight.
        level: Accuracy level that ONNX Runtime computes with.
        graph: Graph of the node.
        node: Product to replace.
    """
    name, read, (rows, columns) = weight_of(node)
    blocks = -(-rows // BLOCK)
    packed_shape = (columns, blocks, BLOCK * bits // 8)
    packed = lazy(
        graph, f"{name}_Q{bits}", lambda: _in_blocks(read(), bits)[0], ir.DataType.UINT8, packed_shape
    )
    scales = lazy(
        graph, f"{name}_scales", lambda: _in_blocks(read(), bits)[1], ir.DataType.FLOAT, (columns, blocks)
    )
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": BLOCK, "accuracy_level": level}
    product = ir.node(
        "MatMulNBits", [node.inputs[0], packed, scales], attributes, domain="com.microsoft", name=node.name
    )
    return [product]


def _in_blocks(weight: Array, bits: int) -> tuple[Array, Array]:
    """Quantize a weight [in, out] to packed blocks and their scales, by ONNX Runtime's kernel."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        DefaultWeightOnlyQuantizer,
    )

    config = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, accuracy_level=4, bits=bits)
    packed, scales, _ = DefaultWeightOnlyQuantizer(config).qbits_block_quant(np.ascontiguousarray(weight))
    return packed, scales


def _is_large_lookup(node: ir.Node) -> bool:
    """Return whether a node looks up rows of a large matrix that is stored in the graph."""
    axis = node.attributes.get("axis")
    if node.domain or node.op_type != "Gather" or (axis is not None and axis.as_int() != 0):
        return False
    table = node.inputs[0]
    if table is None or table.const_value is None or table.const_value.dtype != ir.DataType.FLOAT:
        return False
    # A table that another node still uses, such as a float32 product with a tied weight, stays in float32.
    if len(table.uses()) > 1 or table.is_graph_output():
        return False
    return int(np.prod(table.const_value.shape.numpy(), dtype=np.int64)) >= LARGE_TABLE


def _lookup(graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    """Return a lookup in a float16 table that casts the rows it finds to float32."""
    table, ids = node.inputs
    assert table is not None and table.const_value is not None  # _is_large_lookup has checked it.
    values, name = table.const_value, f"{table.name}_fp16"
    half: ir.TensorProtocol
    if isinstance(values, Weight):
        half = Weight(values.stored, ir.DataType.FLOAT16, values.perm, name)
    else:
        half = ir.tensor(values.numpy().astype(np.float16), name=name)
    rows = ir.node("Gather", [register(graph, half), ids])
    return [rows, ir.node("Cast", [rows.outputs[0]], {"to": ir.DataType.FLOAT}, name=node.name)]


class _Dynamic:
    """Rewrite of products to MatMulInteger, which quantizes each input once for all products that use it."""

    def __init__(self) -> None:
        self.inputs: dict[ir.Value, ir.Node] = {}

    def __call__(self, graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
        name, read, shape = weight_of(node)
        source = node.inputs[0]
        assert source is not None  # A product has two inputs.
        weight = lazy(graph, f"{name}_quantized", lambda: _int8(read())[0], ir.DataType.INT8, shape)
        scale = lazy(graph, f"{name}_scale", lambda: _int8(read())[1], ir.DataType.FLOAT, shape[1:])
        zero = lazy(
            graph, f"{name}_zero_point", lambda: np.zeros(shape[1], np.int8), ir.DataType.INT8, shape[1:]
        )
        nodes = []
        if source not in self.inputs:
            self.inputs[source] = ir.node("DynamicQuantizeLinear", [source], num_outputs=3)
            nodes.append(self.inputs[source])
        quantized, input_scale, input_zero = self.inputs[source].outputs
        product = ir.node("MatMulInteger", [quantized, weight, input_zero, zero], name=node.name)
        cast = ir.node("Cast", [product.outputs[0]], {"to": ir.DataType.FLOAT})
        scales = ir.node("Mul", [input_scale, scale])
        return [*nodes, product, cast, scales, ir.node("Mul", [cast.outputs[0], scales.outputs[0]])]


def _int8(weight: Array) -> tuple[Array, Array]:
    """Quantize a weight [in, out] with one scale for each column, as ONNX Runtime does.

    Signed weights with unsigned activations have an exact VNNI kernel. Without VNNI the weights get a reduced
    range, see :mod:`slipway_serving.runtime.backends.onnxruntime.int8_products`.
    """
    largest = np.abs(weight).max(axis=0).astype(np.float64)
    scale = (2 * largest / (2 * int8_products.largest_exact_weight())).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1.0
    return np.clip((weight / scale).round(), -128, 127).astype(np.int8), scale


def _replace(graph: ir.Graph, node: ir.Node, new_nodes: list[ir.Node], weight: int = 1) -> None:
    """Replace a node by new nodes; a bias, the node's third input, is added to the result of the last one.

    Args:
        graph: Graph of the node.
        node: Node to remove, together with its weight if nothing else uses that.
        new_nodes: New nodes, in their order.
        weight: Index of the node's input that is its weight.
    """
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        new_nodes.append(ir.node("Add", [new_nodes[-1].outputs[0], bias]))
    weight_value, out = node.inputs[weight], node.outputs[0]
    assert weight_value is not None  # The node has a weight at this index.
    new = new_nodes[-1].outputs[0]
    new.name, new.shape, new.type = out.name, out.shape, out.type
    out.name = None
    graph.insert_after(node, new_nodes)
    out.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if not weight_value.uses():
        graph.initializers.pop(str(weight_value.name))
