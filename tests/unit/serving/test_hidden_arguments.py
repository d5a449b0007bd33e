"""Secret arguments reach a program and are on no command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from slipway_serving.system import hidden_arguments

SECRETS = ("--first=a:b=secret-0", "--second=secret-1")
SHOW = "import sys; print(*sys.argv[1:], sep='\\n', flush=True); sys.stdin.read(); input()"


def start(log: Path, code: str = SHOW) -> tuple[subprocess.Popen[bytes], bool]:
    with log.open("wb") as file:
        return hidden_arguments.start(
            [sys.executable, "-c", code, "--shown=1"], SECRETS, env=dict(os.environ), cwd=log.parent, log=file
        )


def test_program_gets_secrets_that_its_command_line_does_not_show(tmp_path: Path) -> None:
    process, hidden = start(tmp_path / "log", SHOW.replace("input()", "__import__('time').sleep(600)"))
    try:
        line = " ".join(psutil.Process(process.pid).cmdline())
    finally:
        process.kill()
        process.wait()
    assert hidden, "this machine lets no process be traced"
    assert "secret" not in line
    assert "--first=(SLIPWAY_ARGUMENT_0)" in line


def test_program_has_its_arguments_in_order_and_no_input(tmp_path: Path) -> None:
    process, _ = start(tmp_path / "log")
    assert process.wait(timeout=60) == 1  # input() meets the end of /dev/null
    text = (tmp_path / "log").read_text()
    assert text.startswith("\n".join(["--shown=1", *SECRETS]) + "\n")
    assert "EOFError" in text


def test_program_is_started_and_the_caller_told_where_nothing_may_be_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_arguments, "_ptrace", lambda *_: False)
    process, hidden = start(tmp_path / "log")
    assert process.wait(timeout=60) == 1
    assert not hidden
    # On a busy machine, the first attempt has written its line before it is ended.
    assert "\n".join(["--shown=1", *SECRETS]) + "\n" in (tmp_path / "log").read_text()


def test_program_that_is_not_there_is_named_without_its_secrets(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file, pytest.raises(FileNotFoundError, match="absent") as caught:
        hidden_arguments.start(
            [str(tmp_path / "absent")], SECRETS, env=dict(os.environ), cwd=tmp_path, log=file
        )
    assert "secret" not in str(caught.value) + (tmp_path / "log").read_text()
