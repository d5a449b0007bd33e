"""Timing of engines that run in turn on the same cores, and the reason why one did not run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# An engine's threads spin while they wait for work, which takes the cores from the next engine.
# Measured with a denoiser of one small layer on 2 busy cores: eager right after ONNX Runtime 350 ms a call,
# 0.02 s later 40 ms, 0.1 s later 5 ms.
_SETTLE_S = 0.1


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Let the cores settle, do the work, and return its duration in milliseconds and its result."""
    time.sleep(_SETTLE_S)
    started = time.perf_counter()
    result = work()
    return 1000 * (time.perf_counter() - started), result


def reason_of(error: Exception) -> str:
    """Return the first line of an error for the report."""
    with contextlib.suppress(IndexError):
        return f"{str(error).strip().splitlines()[0][:300]}"
    return type(error).__name__
