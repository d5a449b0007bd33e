"""Compute capabilities of the machine's NVIDIA GPUs, read from the driver without CUDA's runtime."""

from __future__ import annotations

import ctypes

_DRIVER = "libcuda.so.1"
# Values of CUdevice_attribute in cuda.h.
_MAJOR, _MINOR = 75, 76


def compute_capabilities() -> list[tuple[int, int]]:
    """Return the compute capability of each visible GPU, such as (8, 9); none without a driver or a GPU."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [(_attribute(driver, _MAJOR, i), _attribute(driver, _MINOR, i)) for i in range(count.value)]


def target_of(capability: tuple[int, int]) -> str:
    """Return a compute capability as the name of a build target, such as ``sm89`` for (8, 9)."""
    return f"sm{capability[0]}{capability[1]}"


def _attribute(driver: ctypes.CDLL, attribute: int, device: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value
