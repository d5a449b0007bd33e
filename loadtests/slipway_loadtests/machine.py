"""Facts about the machine of a measurement: processor, cores, memory, load, and software versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slipway_serving.protocol.distribution import NAME

_PACKAGES = (
    NAME,
    "torch",
    "diffusers",
    "onnx",
    "onnxruntime",
    "numpy",
    "nvidia-pytriton",
    "tritonclient",
)


def machine_facts() -> dict[str, Any]:
    """Return what a reader must know about this machine to judge a figure; the load is the current one."""
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_average_1_min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def machine_lines(facts: Mapping[str, Any]) -> list[str]:
    """Describe the machine in words, and warn if it was busy."""
    cores, load = facts["cores"], facts["load_average_1_min"]
    lines = [f"{facts['cpu']}, {cores} cores, load average {load:g} at the start"]
    if load > cores / 2:
        lines.append(
            "the machine was busy with other work: read the ratios as rough; PyTorch's threads may lose more"
            " by it than ONNX Runtime's"
        )
    return lines


def _first(file: str, key: str) -> str | None:
    """Return the first value of a `key : value` file of /proc."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
