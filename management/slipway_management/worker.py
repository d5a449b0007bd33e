"""One export in a process of its own: a job as a line of JSON in, what came of it as a line of JSON out.

Started by :mod:`slipway_management.exports`. Its standard input stays open while the parent lives; when it is
closed, the export ends at once, whatever it is doing. An export that was cut off leaves the repository as it
was (see :mod:`slipway_export.repository`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from slipway_export.spec import Precision


@dataclass(frozen=True)
class Job:
    """What to export and where to.

    Args:
        family: of the trained model.
        model: its id.
        models: the models folder.
        repository: Triton model repository.
        precision: of the graph.
        variant: of the family; None for its own.
        triton: ``host:port`` of the server that serves the repository; None where there is none.
        control_token: the server's.
    """

    family: str
    model: str
    models: str
    repository: str
    precision: str = Precision.FP32.value
    variant: str | None = None
    triton: str | None = None
    control_token: str | None = None

    def to_line(self) -> str:
        """Return the job as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"


def run_job(job: Job) -> None:
    """Export a trained model and have it served; its status says how it went.

    Raises:
        SlipwayError: it failed.
    """
    from slipway_export.commands import quiet_libraries
    from slipway_export.families import family_named
    from slipway_export.library import Library, export_model
    from slipway_export.run import ExportOptions
    from slipway_serving.control import ModelControl

    options = ExportOptions(
        checkpoint="",
        repository=Path(job.repository),
        precision=Precision(job.precision),
        variant=job.variant,
    )

    def publish(model: str) -> None:
        if job.triton is not None:
            ModelControl(job.triton, job.control_token).follow(Path(job.repository), model)

    with quiet_libraries():
        export_model(family_named(job.family), Library(Path(job.models)), job.model, options, publish=publish)


def _end_with_the_parent() -> None:
    """End this process when the parent closes our standard input, which its own end does too."""
    while sys.stdin.buffer.read(1 << 16):
        pass
    os._exit(1)


def main() -> None:
    """Run the job of the first line of the standard input."""
    job = Job(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    # What libraries print is for the log; the answer goes out alone.
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    error: str | None = None
    try:
        run_job(job)
    except Exception as failure:  # noqa: BLE001  (whatever it was, the parent has to be told)
        error = str(failure) or type(failure).__name__
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"error": error}), file=answer, flush=True)
    os._exit(0)  # libraries' threads need not be waited for


if __name__ == "__main__":
    main()
