"""Upper bound for the speed of a float32 denoiser on this machine, if only its matrix products took time.

The products of one call are counted from the case's sizes. The rate is that of one large product in ONNX
Runtime, timed in the rounds of the subjects. A subject at the ceiling can only gain from fewer products or
from a narrower data type.
"""

from __future__ import annotations

import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from slipway_benchmarks.denoiser.cases import LATENT_CHANNELS, PIXELS_PER_LATENT, DenoiserCase
from slipway_serving.families.wan_t2v.request import PIXELS_PER_TOKEN

# Rows, depth and columns of the timed product: the shape of a wide layer, for which the rate is highest.
_ROWS, _DEPTH, _COLUMNS = 3072, 512, 2048
_REPEATS = 5


def product_gflop(case: DenoiserCase) -> float:
    """Return the billions of additions and multiplications in the products of one call.

    The count contains the linear layers and attention of all blocks, the patch embedding and the final
    projection. It leaves out the embeddings of text and time, so the ceiling is too high rather than too low.
    """
    width, tokens, text = case.heads * case.head_dim, case.tokens, case.text_tokens
    patch = LATENT_CHANNELS * (PIXELS_PER_TOKEN // PIXELS_PER_LATENT) ** 2
    block = (
        6 * tokens * width**2  # query, key, value, output; query and output of the attention to the text
        + 2 * text * width**2
        + 2 * tokens * (tokens + text) * width
        + 2 * tokens * width * case.ffn_dim
    )
    return 2 * case.batch * (case.layers * block + 2 * tokens * width * patch) / 1e9


class ProductRate:
    """Times one large float32 product.

    Args:
        threads: Number of threads of ONNX Runtime.
    """

    def __init__(self, threads: int) -> None:
        import onnxruntime

        generator = np.random.default_rng(0)
        weight = generator.standard_normal((_DEPTH, _COLUMNS), np.float32)
        rows = {"a": (_ROWS, _DEPTH), "c": (_ROWS, _COLUMNS)}
        a, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, rows[name]) for name in rows)
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["a", "b"], ["c"])], "product", [a], [c],
            [numpy_helper.from_array(weight, "b")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.feed = {"a": generator.standard_normal(rows["a"], np.float32)}

    def gflop_per_s(self) -> float:
        """Return the best rate of several runs, in billions of operations per second."""
        times = []
        for _ in range(_REPEATS):
            started = time.perf_counter()
            self.session.run(None, self.feed)
            times.append(time.perf_counter() - started)
        return 2 * _ROWS * _DEPTH * _COLUMNS / 1e9 / min(times)
