"""Environments of the clients that other projects publish, each with one of them.

`make .venv-clients/installed` makes them.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
_FOLDER = ROOT / ".venv-clients"
_LIMIT_S = 300


@dataclass(frozen=True)
class ClientEnvironment:
    """Environment with one client.

    Attributes:
        folder: Folder of the environment.
    """

    folder: Path

    def run(self, program: str, *arguments: str, cwd: Path, code: int = 0) -> str:
        """Run a program of the environment to its end, check its exit code, and return its output."""
        # Proxies, keys and folders of caches of this environment must not reach the client. AIPerf makes
        # sockets in the temporary folder, whose paths must be short, so it gets the system's.
        environment = {"PATH": os.environ["PATH"], "HOME": str(cwd)}
        done = subprocess.run(
            [str(self.folder / "bin" / program), *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            cwd=cwd,
            env=environment,
        )
        assert done.returncode == code, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def drive(self, driver: str, *arguments: str, cwd: Path) -> dict[str, Any]:
        """Run a program of ``tests/clients`` and return the JSON document that it prints last."""
        output = self.run("python", str(ROOT / "tests" / "clients" / driver), *arguments, cwd=cwd)
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found


def client_environment(name: str) -> ClientEnvironment:
    """Return the environment of a client; a test is skipped where it was not made."""
    folder = _FOLDER / name
    if not (folder / "bin" / "python").exists():
        pytest.skip(f"{folder.relative_to(ROOT)} does not exist; try `make .venv-clients/installed`")
    return ClientEnvironment(folder)
