"""`docs/reference/commands.md` lists every command, and the pages of the reference name no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from slipway_cli.root import app

REFERENCE = Path(__file__).resolve().parents[3] / "docs/reference"
DOCUMENT = (REFERENCE / "commands.md").read_text(encoding="utf-8")
MIGRATION = (REFERENCE / "migration.md").read_text(encoding="utf-8")


def commands(command: object, path: str) -> Iterator[str]:
    """Yield the whole name of every command that does something by itself."""
    if not isinstance(command, TyperGroup):
        yield path
        return
    for name, part in command.commands.items():
        yield from commands(part, f"{path} {name}")


@pytest.mark.parametrize("command", [*commands(get_command(app), "slipway")])
def test_command_is_in_the_list_of_all(command: str) -> None:
    ours = DOCUMENT.split("## All of ours")[1]
    assert re.search(rf"`{command}[ `]", ours)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`slipway ([a-z][a-z-]*)", DOCUMENT + MIGRATION))))
def test_documented_command_exists(name: str) -> None:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    assert name in root.commands
