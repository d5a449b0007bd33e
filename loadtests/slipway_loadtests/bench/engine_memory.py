"""What a process holds that serves one model: each measured in a process of its own.

The parent starts ``python -m slipway_loadtests.bench.engine_memory '<job as JSON>'`` for every engine; the
child loads the model, calls it once and prints what it held before, with and at most. An engine's libraries
come with its model, and are part of what it takes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from slipway_loadtests.bench.memory import peak_mib, told


@dataclass(frozen=True)
class EngineMemoryJob:
    """One model to measure.

    Attributes:
        repository: folder of the model's folder.
        model: its name.
        inputs: file of the arrays of a call, by name.
        outputs: of the model.
        threads: of the engine.
    """

    repository: str
    model: str
    inputs: str
    outputs: list[str]
    threads: int


@dataclass(frozen=True)
class EngineMemory:
    """What a process held, MiB of resident memory.

    Attributes:
        before_mib: before the model was loaded.
        held_mib: after a call.
        peak_mib: at most, loading and compiling included.
    """

    before_mib: float
    held_mib: float
    peak_mib: float


def measure(job: EngineMemoryJob) -> EngineMemory:
    """Measure one model in a fresh process.

    Raises:
        Unrecoverable: the process failed, for want of memory or otherwise.
    """
    return EngineMemory(**told("slipway_loadtests.bench.engine_memory", asdict(job), job.threads))


def _measured(job: EngineMemoryJob) -> EngineMemory:
    """Load, call and measure, in this process."""
    from slipway_serving.models import InProcessModels

    with np.load(job.inputs) as file:
        inputs = {name: file[name] for name in file.files}
    process = psutil.Process()
    before = process.memory_info().rss / 2**20
    models = InProcessModels(Path(job.repository), threads=job.threads)
    models.call(job.model, inputs, job.outputs)
    return EngineMemory(before, process.memory_info().rss / 2**20, peak_mib())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_measured(EngineMemoryJob(**json.loads(sys.argv[1]))))) + "\n")
