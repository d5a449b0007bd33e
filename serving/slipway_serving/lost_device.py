"""Errors after which a process can never use its device again, and the end of such a process.

CUDA keeps some errors: every later call of the process fails with the same one, while Triton goes on to say
that its models are ready. Only another process can use the device again. So one that met such an error
answers and ends; who watches it (:mod:`slipway_serving.supervision`, a pod's probes) has it started anew.
"""

from __future__ import annotations

import os
import signal
import threading

ANSWER_S = 1.0
"""Seconds in which a process's answers leave it before it ends."""
# The texts of the codes after which, as CUDA's runtime says, "the process must be terminated and relaunched":
# 214, 700, 702, 710, 714 to 719. PyTorch and ONNX Runtime repeat them.
_KEPT = (
    "uncorrectable ECC error encountered",
    "an illegal memory access was encountered",
    "the launch timed out and was terminated",
    "device-side assert triggered",
    "hardware stack error",
    "an illegal instruction was encountered",
    "misaligned address",
    "operation not supported on global/shared address space",
    "invalid program counter",
    "unspecified launch failure",
)


def loses_device(error: Exception) -> bool:
    """Tell whether an error means that this process cannot use its device again."""
    text = str(error)
    return "CUDA" in text and any(kept in text for kept in _KEPT)


def end_soon() -> None:
    """End this process when its answers have had time to leave it."""
    ending = threading.Timer(ANSWER_S, os.kill, (os.getpid(), signal.SIGKILL))
    ending.daemon = True
    ending.start()
