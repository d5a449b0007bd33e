"""Measurements in a process of their own, so that nothing else is in its peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway_serving.protocol.errors import Unrecoverable


def run_module(module: str, job: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """Run one of our modules in a separate process.

    Args:
        module: Name of the module, which is called with the job as JSON.
        job: Job as a mapping.
        threads: Number of threads for libraries that read `OMP_NUM_THREADS`.

    Returns:
        The JSON of the last line that the process printed.

    Raises:
        Unrecoverable: The process failed, for lack of memory or another reason.
    """
    command = [sys.executable, "-m", module, json.dumps(job)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else "no word"
        raise Unrecoverable(f"the process ended with {done.returncode}: {reason[:200]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def peak_mib() -> float:
    """Return the peak resident memory of this process, in MiB."""
    # The peak of `getrusage` includes that of the parent process, and psutil 7 reports no peak.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024
