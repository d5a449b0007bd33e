"""Integer graphs: INT8 by dynamic quantization, INT4 weights in blocks.

Only products with a weight change; those that a component names as sensitive, by the path of their module,
stay as they are. Each weight is quantized when the graph is written, one at a time, as ONNX Runtime does
it. Verification compares the result with the float32 network like any other graph.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from slipway_export.spec import Precision

Array = np.ndarray[Any, Any]
Rewrite = Callable[[ir.Graph, ir.Node], list[ir.Node]]

_SCOPES = "pkg.torch.onnx.name_scopes"
_INT4_BLOCK = 32
# Signed weights of -127 to 127: with unsigned activations their product has a VNNI kernel.
_INT8_LARGEST = 127


def quantize(model: ir.Model, precision: Precision, keep_float: Sequence[str]) -> int:
    """Quantize the matrix products of a graph.

    Args:
        model: float32 graph; it is changed.
        precision: INT8 or INT4.
        keep_float: patterns of module paths, such as ``*.proj_out``, whose products stay in float32.

    Returns:
        Number of quantized products.
    """
    rewrite: Rewrite = _Dynamic() if precision is Precision.INT8 else _blocks
    products = [node for node in model.graph if _is_product(node) and not _matches(node, keep_float)]
    for node in products:
        _replace(model.graph, node, rewrite(model.graph, node))
    if precision is Precision.INT4:
        model.opset_imports.setdefault("com.microsoft", 1)
    return len(products)


def _is_product(node: ir.Node) -> bool:
    """Whether a node multiplies by a weight: a matrix that the graph holds."""
    if node.domain or node.op_type not in ("MatMul", "Gemm"):
        return False
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or weight.const_value.dtype != ir.DataType.FLOAT:
        return False
    plain = all(
        node.attributes[name].value == default
        for name, default in (("alpha", 1.0), ("beta", 1.0), ("transA", 0))
        if name in node.attributes
    )
    return plain and len(weight.const_value.shape) == 2


def _matches(node: ir.Node, patterns: Sequence[str]) -> bool:
    scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    return any(fnmatch.fnmatchcase(path, pattern) for path in scopes for pattern in patterns)


def _weight_of(node: ir.Node) -> tuple[str, Callable[[], Array], tuple[int, int]]:
    """Return name, values and shape [in, out] of the weight that a product multiplies by."""
    value = node.inputs[1]
    assert value is not None and value.const_value is not None  # _is_product has it so.
    tensor = value.const_value
    turned = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    rows, columns = (int(size) for size in tensor.shape.numpy())
    shape = (columns, rows) if turned else (rows, columns)
    return str(value.name), lambda: tensor.numpy().T if turned else tensor.numpy(), shape


def _lazy(
    graph: ir.Graph, name: str, make: Callable[[], Array], dtype: ir.DataType, shape: Sequence[int]
) -> ir.Value:
    """Give a graph a tensor that is made when it is written; the one of that name where it has it."""
    known = graph.initializers.get(name)
    if known is not None:
        return known
    tensor = ir.LazyTensor(lambda: ir.tensor(make(), name=name), dtype, ir.Shape(shape), name=name)
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _blocks(graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    """Return MatMulNBits in place of a product: weights of 4 bits in blocks along its inputs."""
    name, read, (rows, columns) = _weight_of(node)
    blocks = -(-rows // _INT4_BLOCK)
    packed = _lazy(
        graph, f"{name}_Q4", lambda: _int4(read())[0], ir.DataType.UINT8, (columns, blocks, _INT4_BLOCK // 2)
    )
    scales = _lazy(graph, f"{name}_scales", lambda: _int4(read())[1], ir.DataType.FLOAT, (columns, blocks))
    attributes = {"K": rows, "N": columns, "bits": 4, "block_size": _INT4_BLOCK, "accuracy_level": 4}
    product = ir.node(
        "MatMulNBits", [node.inputs[0], packed, scales], attributes, domain="com.microsoft", name=node.name
    )
    return [product]


def _int4(weight: Array) -> tuple[Array, Array]:
    """Quantize a weight [in, out] to packed blocks and their scales, by ONNX Runtime's kernel."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        DefaultWeightOnlyQuantizer,
    )

    config = DefaultWeightOnlyQuantConfig(block_size=_INT4_BLOCK, is_symmetric=True, accuracy_level=4, bits=4)
    packed, scales, _ = DefaultWeightOnlyQuantizer(config).qbits_block_quant(np.ascontiguousarray(weight))
    return packed, scales


class _Dynamic:
    """Puts MatMulInteger in place of products; their input is quantized once for all that take it."""

    def __init__(self) -> None:
        self.inputs: dict[ir.Value, ir.Node] = {}

    def __call__(self, graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
        name, read, shape = _weight_of(node)
        source = node.inputs[0]
        assert source is not None  # A product has two inputs.
        weight = _lazy(graph, f"{name}_quantized", lambda: _int8(read())[0], ir.DataType.INT8, shape)
        scale = _lazy(graph, f"{name}_scale", lambda: _int8(read())[1], ir.DataType.FLOAT, shape[1:])
        zero = _lazy(
            graph, f"{name}_zero_point", lambda: np.zeros(shape[1], np.int8), ir.DataType.INT8, shape[1:]
        )
        made = []
        if source not in self.inputs:
            self.inputs[source] = ir.node("DynamicQuantizeLinear", [source], num_outputs=3)
            made.append(self.inputs[source])
        quantized, input_scale, input_zero = self.inputs[source].outputs
        product = ir.node("MatMulInteger", [quantized, weight, input_zero, zero], name=node.name)
        cast = ir.node("Cast", [product.outputs[0]], {"to": ir.DataType.FLOAT})
        scales = ir.node("Mul", [input_scale, scale])
        return [*made, product, cast, scales, ir.node("Mul", [cast.outputs[0], scales.outputs[0]])]


def _int8(weight: Array) -> tuple[Array, Array]:
    """Quantize a weight [in, out] to -127 to 127 with one scale for each column, as ONNX Runtime does."""
    largest = np.abs(weight).max(axis=0).astype(np.float64)
    scale = (2 * largest / (2 * _INT8_LARGEST)).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1.0
    return np.clip((weight / scale).round(), -128, 127).astype(np.int8), scale


def _replace(graph: ir.Graph, node: ir.Node, made: list[ir.Node]) -> None:
    """Put nodes in place of a product, whose bias is added to the last."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        made.append(ir.node("Add", [made[-1].outputs[0], bias]))
    weight, out = node.inputs[1], node.outputs[0]
    assert weight is not None  # _is_product has it so.
    new = made[-1].outputs[0]
    new.name, new.shape, new.type = out.name, out.shape, out.type
    out.name = None
    graph.insert_after(node, made)
    out.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if not weight.uses():
        graph.initializers.pop(str(weight.name))
