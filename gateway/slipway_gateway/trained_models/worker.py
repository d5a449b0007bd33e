"""Worker process that runs one export: it reads a job and writes the result, each as one line of JSON.

:mod:`slipway_gateway.trained_models.exports` starts it. Its standard input stays open while the parent
lives; when it closes, the worker exits at once, even during an export. An interrupted export leaves the
repository unchanged (see :mod:`slipway_export.repository.publish`).
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
    """One export: the trained model and the repository that receives it.

    Args:
        family: Model family of the trained model.
        model: Identifier of the trained model.
        models: Path of the models folder.
        repository: Path of the Triton model repository.
        precision: Precision of the graph.
        variant: Variant of the family; None for the family's default.
        triton: ``host:port`` of the server that serves the repository; None if there is no server.
        control_token: Control token of that server.
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
    """Export a trained model and load it into the server; the model's status records the result.

    Raises:
        SlipwayError: The export failed, or the server did not load the model.
    """
    from slipway_export.commands.terminal import quiet_libraries
    from slipway_export.families import family_named
    from slipway_export.options import ExportOptions
    from slipway_export.trained_models import Library, export_model
    from slipway_serving.triton.control import ModelControl

    options = ExportOptions(
        checkpoint="",
        repository=Path(job.repository),
        precision=Precision(job.precision),
        variant=job.variant,
    )

    def publish(model: str) -> None:
        if job.triton is not None:
            ModelControl(job.triton, job.control_token).sync(Path(job.repository), model)

    with quiet_libraries():
        export_model(family_named(job.family), Library(Path(job.models)), job.model, options, publish=publish)


def _exit_with_parent() -> None:
    """Exit this process when standard input closes, which also happens when the parent dies."""
    while sys.stdin.buffer.read(1 << 16):
        pass
    os._exit(1)


def main() -> None:
    """Run the job from the first line of standard input."""
    job = Job(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # Libraries print to standard output: send that to the log, so that the answer is the only output.
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    error: str | None = None
    try:
        run_job(job)
    except Exception as failure:  # noqa: BLE001  (whatever it was, the parent has to be told)
        error = str(failure) or type(failure).__name__
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"error": error}), file=answer, flush=True)
    os._exit(0)  # do not wait for the libraries' threads


if __name__ == "__main__":
    main()
