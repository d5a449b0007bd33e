"""Building of an engine in a process of its own, and the report of a process that ended early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from slipway_export.engines.tensorrt.cures import cure_of
from slipway_export.engines.tensorrt.plan import EnginePlan
from slipway_export.engines.tensorrt.report import BuildReport, NodeError
from slipway_serving.protocol.errors import SlipwayError

_MODULE = "slipway_export.engines.tensorrt.builder"


class BuildFailed(SlipwayError):
    """TensorRT refuses a graph; nothing was placed."""

    code = "ENGINE"


def build_engine(plan: EnginePlan) -> BuildReport:
    """Parse a graph and build its engine in a process of its own.

    Args:
        plan: Plan of the engine.

    Returns:
        Report, which also describes a process that ended without one: killed for its memory, or by the
        library.
    """
    with tempfile.TemporaryDirectory(prefix="slipway-engine-") as folder:
        plan_file, report_file = Path(folder) / "plan.json", Path(folder) / "report.json"
        plan_file.write_text(json.dumps(plan.to_json()), encoding="utf-8")
        # The library prints past its logger, so its output is kept for the case that it ends the process.
        done = subprocess.run(
            [sys.executable, "-m", _MODULE, str(plan_file), str(report_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            check=False,
        )
        if done.returncode == 0:
            return BuildReport.from_json(json.loads(report_file.read_text(encoding="utf-8")))
        if plan.engine is not None:
            plan.engine.unlink(missing_ok=True)
        message = _end_of(done.returncode, done.stdout.decode(errors="replace"))
        return BuildReport(
            "", parsed=False, built=False, errors=(NodeError("", "", message, cure_of(message)),)
        )


def check_built(report: BuildReport, label: str, library: str) -> None:
    """Refuse a graph that was not built.

    Args:
        report: Report of the build.
        label: Label of the component.
        library: Name of the library.

    Raises:
        BuildFailed: The parser or the builder refused the graph. The message names each node, the error and
            the cure.
    """
    if report.built:
        return
    what = "parse" if not report.parsed else "build"
    reasons = " | ".join(error.text for error in report.errors) or "no message"
    raise BuildFailed(f"{label}: {library} must {what} the graph, got {reasons}; nothing was placed")


def _end_of(code: int, output: str) -> str:
    """Return how a building process ended, and the last line that it printed."""
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    if code == -signal.SIGKILL:
        return (
            f"the builder was killed, probably because the memory did not suffice (Cannot allocate): {last}"
        )
    if code < 0:
        return f"the builder ended by signal {signal.Signals(-code).name}: {last}"
    return f"the builder ended with status {code}: {last}"
