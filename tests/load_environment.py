"""The environment that makes load, apart from this one: Locust and Triton's wheel want different packages.

`make test` made it beside this environment's; else the first test that asks makes it, once for a test run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
_MADE = ROOT / ".venv-load"
# For what hangs: a run of seconds on a busy machine.
_LIMIT_S = 300


@dataclass(frozen=True)
class Loaded:
    """A load test that has ended.

    Attributes:
        code: its exit code.
        report: as `--json` wrote it; empty without.
        page: as `--html` wrote it; empty without.
        output: of both streams.
    """

    code: int
    report: dict[str, Any]
    page: str
    output: str

    def whole(self, model: str) -> dict[str, Any]:
        """Return a model's figures of the whole run."""
        found: dict[str, Any] = self.report["models"][model]["whole"]
        return found


@dataclass(frozen=True)
class LoadEnvironment:
    """The environment.

    Attributes:
        folder: of it.
    """

    folder: Path

    def start(self, *command: str, cwd: Path = ROOT) -> subprocess.Popen[str]:
        """Start a program of the environment."""
        line = [str(self.folder / "bin" / command[0]), *command[1:]]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(line, text=True, cwd=cwd, **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, *command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end; its output is that of both streams."""
        with self.start(*command, cwd=cwd) as process:
            try:
                output, _ = process.communicate(timeout=_LIMIT_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(command, process.returncode, output)

    def load(self, folder: Path, url: str, line: str) -> Loaded:
        """Run `slipway load` with further options, its words divided by spaces, and read its reports."""
        data, page = folder / "load.json", folder / "load.html"
        for report in (data, page):
            report.unlink(missing_ok=True)
        reports = ("--json", str(data), "--html", str(page))
        done = self.run("slipway", "load", "--url", url, *line.split(), *reports)
        return Loaded(
            done.returncode,
            json.loads(data.read_text()) if data.exists() else {},
            page.read_text() if page.exists() else "",
            done.stdout,
        )


def load_environment(shared: Path) -> LoadEnvironment:
    """Return the environment, made where there is none."""
    if (_MADE / "installed").exists():
        return LoadEnvironment(_MADE)
    folder = shared / "load_environment"
    with FileLock(shared / "load_environment.lock"):
        if not (folder / "installed").exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            options = ("--quiet", "--disable-pip-version-check", "--no-compile")
            lock = str(ROOT / "requirements-load.lock")
            wanted = ("--constraint", lock, "--editable", f"{ROOT}[load]")
            subprocess.run([str(folder / "bin/pip"), "install", *options, *wanted], check=True)
            (folder / "installed").touch()
    return LoadEnvironment(folder)


def assert_all_answered(done: Loaded, model: str, *measures: str) -> None:
    """Assert that a load test kept its plan: every request to a model answered, and measured."""
    assert done.code == 0, done.output
    whole = done.whole(model)
    assert set(whole["ended"]) == {"answered"}, (whole, done.output)
    for name in ("latency_s", "real_time_factor", *measures):
        assert whole["measures"][name]["count"] > 0, (name, whole)
