"""Check that ONNX Runtime multiplies a graph's INT8 weights exactly on this processor.

An x86 processor without VNNI adds each pair of 8-bit products in 16 bits and clips the sum. With weights of
up to 127 the results are then far off: half of the sum of 64 products of 255 and 127 is lost. Weights of up
to 64 never reach the limit (2 * 255 * 64 < 2**15). ONNX Runtime calls this a reduced range.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

FULL, REDUCED = 127, 64
"""Largest absolute value of any 8-bit weight, and of a weight whose products no processor clips."""
PROPERTY = "slipway.int8_largest_weight"
"""Metadata property of a graph with INT8 weights: their largest possible absolute value."""
_EXACT = {"avx512_vnni", "avx_vnni"}
_X86 = {"x86_64", "AMD64"}


@cache
def largest_exact_weight() -> int:
    """Return the largest absolute weight whose products with unsigned 8-bit numbers are exact here."""
    if platform.machine() not in _X86:
        return FULL
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return FULL if _EXACT & set(line.split()) else REDUCED
    return REDUCED


def problem(largest: int) -> str:
    """Return an error message if this processor does not multiply weights exactly, or an empty string.

    Args:
        largest: Largest possible absolute value of the weights, from the graph's property :data:`PROPERTY`.
    """
    if largest <= largest_exact_weight():
        return ""
    return (
        f"INT8 weights must be at most {largest_exact_weight()} on a processor without VNNI, which clips"
        f" their products, got weights of up to {largest}; export the model on such a machine, or with"
        " another precision"
    )
