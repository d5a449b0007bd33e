"""Memory of a process that serves one model, each measured in a separate process.

The parent starts ``python -m slipway_benchmarks.engines.memory '<job as JSON>'`` for every engine. The
child loads the model, calls it once and prints its memory before loading, after the call and at the peak. The
figures include the engine's libraries, which are loaded with its model.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from slipway_benchmarks.separate_process import peak_mib, run_module


@dataclass(frozen=True)
class EngineMemoryJob:
    """One model to measure.

    Attributes:
        repository: Folder that contains the model's folder.
        model: Name of the model.
        inputs: Path of the file with the arrays of a call, by name.
        outputs: Names of the model's outputs.
        threads: Number of threads of the engine.
        gpu: True if the model runs on a GPU where its configuration says so.
    """

    repository: str
    model: str
    inputs: str
    outputs: list[str]
    threads: int
    gpu: bool = False


@dataclass(frozen=True)
class EngineMemory:
    """Resident memory of a process, in MiB.

    Attributes:
        before_mib: Memory before the model was loaded.
        held_mib: Memory after a call.
        peak_mib: Peak memory, including loading and compiling.
    """

    before_mib: float
    held_mib: float
    peak_mib: float


def measure(job: EngineMemoryJob) -> EngineMemory:
    """Measure one model in a fresh process.

    Raises:
        Unrecoverable: The process failed, for lack of memory or another reason.
    """
    return EngineMemory(**run_module("slipway_benchmarks.engines.memory", asdict(job), job.threads))


def _measured(job: EngineMemoryJob) -> EngineMemory:
    """Load, call and measure in this process."""
    from slipway_serving.runtime.in_process import InProcessModels

    with np.load(job.inputs) as file:
        inputs = {name: file[name] for name in file.files}
    process = psutil.Process()
    before = process.memory_info().rss / 2**20
    models = InProcessModels(Path(job.repository), threads=job.threads, gpu=job.gpu)
    models.call(job.model, inputs, job.outputs)
    return EngineMemory(before, process.memory_info().rss / 2**20, peak_mib())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(_measured(EngineMemoryJob(**json.loads(sys.argv[1]))))) + "\n")
