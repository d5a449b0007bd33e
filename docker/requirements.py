"""Print what pyproject.toml asks for, a requirement a line: what an image installs before slipway itself.

The bare client with no argument, more with extras. Images install these in a layer of their own, so that a
changed line of ours makes a small layer and downloads nothing.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9._-]+")


def requirements(project: Path, extras: list[str], without: list[str], instead: dict[str, str]) -> list[str]:
    """Return the requirements of a project's bare install and of extras.

    Args:
        project: pyproject.toml.
        extras: names of its optional dependencies; an extra may name others of the project.
        without: distributions to leave out.
        instead: distributions to take under another name, within the same bounds.

    Raises:
        SystemExit: there is no such extra, or nothing asks for a distribution that is named.
    """
    table = tomllib.loads(project.read_text())["project"]
    lines = sorted(set(table["dependencies"]).union(*(_extra(table, extra) for extra in extras)))
    by_line = {line: _NAME.match(line)[0] for line in lines}
    if unasked := sorted({*without, *instead} - set(by_line.values())):
        raise SystemExit(f"requirements: must name what the extras ask for, got {', '.join(unasked)}")
    return [
        instead.get(name, name) + line[len(name) :] for line, name in by_line.items() if name not in without
    ]


def _extra(table: dict[str, Any], extra: str) -> set[str]:
    """Return the requirements of an extra, with those of our own extras that it names."""
    optional = table["optional-dependencies"]
    if extra not in optional:
        raise SystemExit(f"requirements: extras must be {', '.join(optional)}, got {extra}")
    ours = re.compile(rf"{re.escape(table['name'])}\[([\w,-]+)\]$")
    found: set[str] = set()
    for line in optional[extra]:
        named = ours.match(line)
        found |= set().union(*(_extra(table, one) for one in named[1].split(","))) if named else {line}
    return found


def main() -> None:
    """Read the arguments and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("project", type=Path, help="pyproject.toml")
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without", action="append", default=[], metavar="NAME")
    parser.add_argument("--instead", action="append", default=[], metavar="NAME=OTHER")
    given = parser.parse_args()
    instead = dict(pair.split("=") for pair in given.instead)
    print(*requirements(given.project, given.extras, given.without, instead), sep="\n")


if __name__ == "__main__":
    main()
