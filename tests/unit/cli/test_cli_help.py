"""The help of every command: plain words, panels with examples, `-h`, completion, and `SLIPWAY_URL`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from slipway_cli import root

# reStructuredText, which a terminal shows as it stands.
MARKUP = re.compile(r":[a-z]+:`|``|^\s*\.\. ", re.MULTILINE)
ASKING = ("generate wan_t2v", "play", "listen", "imu", "ready", "load", "saturate")


def paths() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group, the root among them."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                yield from walk(command.get_command(None, name), (*words, name))

    yield from walk(typer.main.get_command(root.app), ())


def help_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str], flag: str = "--help") -> str:
    assert root.run([*words, flag]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [*paths()], ids=lambda words: " ".join(words) or "root")
def test_help_is_plain_text_when_it_is_asked(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wide lines, so that no markup is broken over two.
    monkeypatch.setenv("COLUMNS", "1000")
    text = help_of(words, capsys)
    assert not MARKUP.search(text), MARKUP.search(text)


@pytest.mark.parametrize("words", [(), ("serve",), ("generate",), ("generate", "wan_t2v")])
def test_short_flag_shows_the_same_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert help_of(words, capsys, "-h") == help_of(words, capsys)


def test_every_command_is_in_a_panel_with_an_example_when_the_root_describes_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_of((), capsys)
    titles = [line.removesuffix(":") for line in text.splitlines() if line.endswith(":")]
    assert titles[-len(root.PANELS) :] == list(root.PANELS)
    for panel in root.PANELS:
        section = text.split(f"{panel}:\n")[1].split(":\n")[0]
        named = [command for command in root.COMMANDS if command.panel == panel]
        assert named and all(re.search(rf"^  {command.name} ", section, re.M) for command in named)
        (example,) = re.findall(r"^    \$ (.*)$", section, re.M)
        assert example in {command.example for command in named}
    assert {command.panel for command in root.COMMANDS} == set(root.PANELS)


@pytest.mark.parametrize("command", root.COMMANDS, ids=lambda command: command.name)
def test_example_can_be_read_and_stands_whole_in_the_commands_help(
    command: root.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    program, name, *arguments = shlex.split(command.example)
    assert (program, name) == ("slipway", command.name)
    found: Any = typer.main.get_command(root.app)
    while hasattr(found, "get_command") and name:
        found = found.get_command(None, name)
        is_group = hasattr(found, "get_command") and not arguments[0].startswith("-")
        name = arguments.pop(0) if is_group else ""
    found.make_context(command.name, arguments)  # it parses and checks, and runs nothing
    assert f"\n    {command.example}\n" in help_of((command.name,), capsys)
    assert len(command.example) <= 76


@pytest.mark.parametrize("line", ASKING)
def test_url_comes_from_the_environment_when_a_command_asks_a_server(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "[env var: SLIPWAY_URL]" in re.sub(r"\s+", " ", help_of(tuple(line.split()), capsys))


@pytest.mark.parametrize("line", ["bench video", "bench quality", "soak"])
def test_url_does_not_come_from_the_environment_when_a_command_serves_by_itself(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_of(tuple(line.split()), capsys)
    assert "--url" in text and "SLIPWAY_URL" not in text


def test_url_on_the_command_line_wins_over_the_environments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIPWAY_URL", "http://127.0.0.1:1")
    assert root.run(["ready"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert root.run(["ready", "--url", "http://127.0.0.1:2"]) == 1
    err = capsys.readouterr().err
    assert "127.0.0.1:2" in err and "127.0.0.1:1" not in err


def completed(*words: str) -> list[str]:
    """Return what a bash would offer after words."""
    environment = {
        "_SLIPWAY_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("slipway", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "slipway_cli"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_offers_commands_families_and_options() -> None:
    assert completed("lis") == ["listen"]
    assert set(completed("generate", "w")) == {"wan_t2v", "wakeword"}
    assert "--snapshot" in completed("play", "--sn")


def test_completion_is_shown_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert root.run(["--show-completion", "bash"]) == 0
    assert "complete -o default -F _slipway_completion slipway" in capsys.readouterr().out
