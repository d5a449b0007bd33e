"""Integer graphs from a float one: INT8 by dynamic quantization, INT4 weights in blocks.

The float graph is exported and rewritten first; only matrix products change, and those that a
component names as sensitive, by the path of their module, stay as they are. Verification compares the
result with the float32 network like any other graph.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto

from slipway_export.spec import Precision

_SCOPES = "pkg.torch.onnx.name_scopes"
_INT4_BLOCK = 32


def quantize(source: Path, target: Path, precision: Precision, keep_float: Sequence[str]) -> int:
    """Quantize the matrix products of a graph.

    Args:
        source: float32 graph to read.
        target: graph to write.
        precision: INT8 or INT4.
        keep_float: patterns of module paths, such as ``*.proj_out``, whose products stay in float32.

    Returns:
        Number of quantized products.
    """
    model = onnx.load(source)
    # The exporter's shapes: the quantizer adds values and trusts stale ones.
    del model.graph.value_info[:]
    excluded = _excluded(model, keep_float)
    with _quiet():
        if precision is Precision.INT8:
            return _dynamic(model, target, excluded)
        return _weights(model, target, excluded)


def _dynamic(model: ModelProto, target: Path, excluded: list[str]) -> int:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        model,
        target,
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        # With unsigned activations and signed weights the product has a VNNI kernel.
        weight_type=QuantType.QInt8,
        nodes_to_exclude=excluded,
        # Of the outputs of contrib operators, which shape inference does not know.
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )
    nodes = onnx.load(target, load_external_data=False).graph.node
    return sum(node.op_type == "MatMulInteger" for node in nodes)


def _weights(model: ModelProto, target: Path, excluded: list[str]) -> int:
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    config = DefaultWeightOnlyQuantConfig(block_size=_INT4_BLOCK, is_symmetric=True, accuracy_level=4, bits=4)
    quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=excluded, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))
    return sum(node.op_type == "MatMulNBits" for node in quantizer.model.model.graph.node)


def _excluded(model: ModelProto, patterns: Sequence[str]) -> list[str]:
    """Return the products to leave alone, of a Gemm also as the MatMul into which it is first split."""
    names = [
        node.name
        for node in model.graph.node
        if node.op_type in ("MatMul", "Gemm") and _matches(node, patterns)
    ]
    return names + [f"{name}_MatMul" for name in names]


def _matches(node: NodeProto, patterns: Sequence[str]) -> bool:
    scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
    return any(
        fnmatch.fnmatchcase(path, pattern) for path in ast.literal_eval(scopes) for pattern in patterns
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep a line for every node off the terminal: both quantizers log through the root logger."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
