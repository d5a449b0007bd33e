"""Sticky device errors, after which a process can never use its device again and must end.

Some CUDA errors are sticky: every later call of the process fails with the same error, while Triton still
reports that its models are ready. Only another process can use the device again. So a process that got such
an error answers its requests and ends; :mod:`slipway_serving.triton.supervision` or a pod's probes restart
it.
"""

from __future__ import annotations

import os
import signal
import threading

ANSWER_S = 1.0
"""Seconds that a process has to send its answers before it ends."""
# Texts of the error codes after which, as CUDA's runtime says, "the process must be terminated and
# relaunched": 214, 700, 702, 710, 714 to 719. PyTorch and ONNX Runtime repeat these texts.
_STICKY_ERRORS = (
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


def is_device_lost(error: Exception) -> bool:
    """Return True if an error means that this process cannot use its device again."""
    text = str(error)
    return "CUDA" in text and any(sticky in text for sticky in _STICKY_ERRORS)


def exit_soon() -> None:
    """End this process after it has had time to send its answers."""
    ending = threading.Timer(ANSWER_S, os.kill, (os.getpid(), signal.SIGKILL))
    ending.daemon = True
    ending.start()
