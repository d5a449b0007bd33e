"""Cures for errors of TensorRT's parser and builder, found by their messages.

Each entry was seen with the real parser and builder; the note behind it says on which graph.
"""

from __future__ import annotations

import re

_OPSET_22 = (
    "opset 22, where attention is products and a softmax (`slipway export --engine tensorrt` writes it)"
)
CURES = (
    # Float32 attention, or a head size without a fused kernel: 8, 264, 384, 512.
    (r"decompose_composite_ops|Attention operation was not supported by a dedicated kernel", _OPSET_22),
    # Queries and keys 40 wide, values 32 wide: the VAE of HunyuanVideo.
    (r"Attention.*(head|hidden).*size|value.*head size", _OPSET_22),
    # Float32 activations with a float16 scale.
    (r"RMSNormalization", "a scale of the same type as the input, or opset 22"),
    (r"is_causal|causal.*mask", "the attribute is_causal=1 without a mask, or opset 22"),
    # Quantized to float8, for sm80 or sm86.
    (r"fp8_e4m3|HW-specific datatypes", "a target with float8 (sm89, sm120), or --precision int8"),
    # A transposed convolution in bfloat16.
    (r"deconv.*bf16", "float16 or float32 for transposed convolutions"),
    (r"zero.?point", "symmetric quantization, whose zero points are 0"),
    (r"TopK.*3840|K not exceeding|K > 3840", "a K of at most 3840"),
    (r"antialias", "a Resize without antialias"),
    (r"STFT|DFT|complex", "a Fourier transform as products with cosines and sines"),
    (r"No importer registered for op|no importer", "standard operators (--engine tensorrt), or a plugin"),
    (
        r"profile.*(dimension|shape)|Invalid.*profile|kMIN|kMAX",
        "ranges that the graph allows: --axis NAME=MIN:OPT:MAX",
    ),
    (
        r"OutOfMemory|out of memory|bad_alloc|Cannot allocate",
        "a machine with more memory, or --weight-streaming",
    ),
)
"""Pairs of a pattern of a message and what to do about it; the first that fits counts."""


def cure_of(message: str) -> str:
    """Return what to do about an error; empty if no cure is known."""
    return next((cure for pattern, cure in CURES if re.search(pattern, message, re.IGNORECASE)), "")
