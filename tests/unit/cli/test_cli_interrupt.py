"""Ctrl-C at any moment of a command: one line on stderr, exit code 130, no traceback."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slipway_cli import root
from slipway_export import run

ROOT = Path(__file__).resolve().parents[3]
# Starts the installed command, and sends SIGINT to it when it imports a module of a name.
PROGRAM = """
import os, signal, sys
from importlib import import_module

signal.signal(signal.SIGINT, signal.default_int_handler)
module, wrapped, start, *arguments = sys.argv[1:]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if wrapped == "wrapped":
                    raise ImportError("initialization failed") from None
                raise

sys.meta_path.insert(0, Interrupting())
place, _, name = start.partition(":")
sys.argv = ["slipway", *arguments]
getattr(import_module(place), name)()
"""
START = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["slipway"]


def interrupted(module: str, *arguments: str, wrapped: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command, interrupted when it imports a module."""
    kind = "wrapped" if wrapped else "plain"
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, module, kind, START, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "module", ["typer", "numpy", "slipway_cli.root", "slipway_export.commands.export_commands"]
)
def test_interrupt_is_one_line_when_the_commands_are_being_imported(module: str) -> None:
    done = interrupted(module, "families")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("slipway_export.families", ["families"]),
        ("slipway_client.client", ["ready", "--url", "127.0.0.1:1"]),
        ("slipway_client.client", ["generate", "wan_t2v", "x", "--url", "127.0.0.1:1"]),
        ("slipway_export.engines.choice", ["export", "airimu", "--checkpoint", "tiny", "--repository", "r"]),
    ],
)
def test_interrupt_is_one_line_when_a_command_imports_what_it_needs(
    module: str, arguments: list[str], tmp_path: Path
) -> None:
    done = interrupted(module, *arguments)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_interrupt_is_one_line_when_an_import_makes_another_error_of_it() -> None:
    done = interrupted("slipway_export.families", "families", wrapped=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--repository", "r"], "the same command continues after the last finished graph"),
        (
            ["--repository", "r", "--fresh"],
            "without --fresh the same command continues after the last finished graph",
        ),
        (
            ["--output", "o.onnx", "--component", "codenet"],
            "o.onnx is unchanged; the same command starts from the beginning",
        ),
    ],
)
def test_export_says_what_the_same_command_does_when_it_is_interrupted(
    flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_export", interrupt)
    assert root.run(["export", "airimu", "--checkpoint", "tiny", *flags]) == 130
    assert capsys.readouterr() == ("", f"error: export: interrupted; {said}\n")


def test_interrupted_command_says_so_when_it_says_nothing_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from slipway_export import families

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(families, "registered", interrupt)
    assert root.run(["families"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")
