"""Load of the machine of a replica, from Triton's own metrics."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

PROCESSOR, MEMORY_USED, MEMORY = (
    "nv_cpu_utilization",
    "nv_cpu_memory_used_bytes",
    "nv_cpu_memory_total_bytes",
)
_GPU_LABEL = "gpu_uuid"
_GPU = ("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage")
NAMES = frozenset({PROCESSOR, MEMORY_USED, MEMORY, *_GPU})
"""Names of the metrics that :class:`HardwareReader` takes."""


@dataclass(frozen=True)
class Gpu:
    """Load of one GPU.

    Attributes:
        id: Identifier of the device.
        share: Share of the time in which it worked, 0 to 1; None if it is not reported.
        memory_used_bytes: Used memory.
        memory_bytes: Memory in total.
        power_w: Electrical power, in watts; None if it is not reported.
    """

    id: str
    share: float | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    power_w: float | None


@dataclass(frozen=True)
class Hardware:
    """Load of a machine.

    Attributes:
        processor_share: Share of all processors that work, 0 to 1; None if it is not reported.
        memory_used_bytes: Used memory.
        memory_bytes: Memory in total.
        gpus: GPUs that the server sees.
    """

    processor_share: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()


class HardwareReader:
    """Reader of the samples of one metrics page."""

    def __init__(self) -> None:
        self._machine: dict[str, float] = {}
        self._gpus: dict[str, dict[str, float]] = defaultdict(dict)

    def add(self, name: str, labels: dict[str, str], value: float) -> None:
        """Take a sample; one that is no number is left out."""
        if not math.isfinite(value):
            return
        if name in _GPU:
            self._gpus[labels.get(_GPU_LABEL, "")][name] = value
        else:
            self._machine[name] = value

    def result(self) -> Hardware:
        """Return the load that the samples state."""
        machine = self._machine
        return Hardware(
            processor_share=machine.get(PROCESSOR),
            memory_used_bytes=_whole(machine.get(MEMORY_USED)),
            memory_bytes=_whole(machine.get(MEMORY)),
            gpus=tuple(_gpu(uuid, values) for uuid, values in sorted(self._gpus.items())),
        )


def _gpu(uuid: str, values: dict[str, float]) -> Gpu:
    share, used, total, power_w = (values.get(name) for name in _GPU)
    return Gpu(uuid, share, _whole(used), _whole(total), power_w)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
