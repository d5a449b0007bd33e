"""Clean environments with the built wheel: what its metadata asks for, and nothing else of this environment.

No index is asked. An environment holds links to the distributions that the wheel and its extras require,
transitively, in the versions that are installed here; pip then installs the wheel itself. A folder that one
distribution has for itself is one link, since links to the 44,000 files of an extra with torch take seconds.
"""

from __future__ import annotations

import csv
import functools
import os
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Variables of a program of an environment, which must not find packages of ours elsewhere."""


def build_wheel(folder: Path, source: Path = ROOT, *, editable: bool = False) -> Path:
    """Build a distribution of this checkout, by the hatchling that is installed here.

    Args:
        folder: Folder for the wheel.
        source: Folder of the distribution's pyproject.toml.
        editable: True for the wheel of an editable install, which only names the checkout's folders.
    """
    if editable:
        build = f"from hatchling.build import build_editable; build_editable({str(folder)!r})"
        subprocess.run([sys.executable, "-c", build], check=True, cwd=source)
        (wheel,) = folder.glob("*.whl")
        return wheel
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        folder: of the environment.
    """

    folder: Path

    def run(self, *command: str, limit_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, in its folder."""
        program = str(self.folder / "bin" / command[0])
        return subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            cwd=self.folder,
            env=VARIABLES,
            stdin=subprocess.DEVNULL,
        )

    def slipway(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command line of slipway, its words divided by spaces."""
        return self.run("slipway", *command.split())


def make_environment(folder: Path, wheel: Path, extra: str | None) -> Environment:
    """Make an environment with the wheel, and with what it requires with an extra."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for wanted in _required(wheel, extra).values():
        installed = Path(str(wanted.locate_file(""))).resolve()
        for name in _linked(wanted):
            link = packages / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(installed / name)
    python = str(folder / "bin/python")
    pip = (sys.executable, "-m", "pip", "--python", python)
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel))
    subprocess.run([*pip, *install], check=True)
    subprocess.run([*pip, "check"], check=True, stdout=subprocess.DEVNULL)
    return Environment(folder)


def _linked(wanted: Distribution) -> set[str]:
    """Return what to link: the files of a distribution, or the folders that no other has files in."""
    found = set()
    for file in _files(wanted):
        top, inside, _ = file.partition("/")
        found.add(top if inside and _distributions_by_folder()[top] == 1 else file)
    return found


def _files(of: Distribution) -> set[str]:
    """Return the files of a distribution in site-packages, relative to it."""
    rows = csv.reader((of.read_text("RECORD") or "").splitlines())
    return {file for file, *_ in rows if not file.startswith(("/", "../"))}


@functools.cache
def _distributions_by_folder() -> Mapping[str, int]:
    """Count the installed distributions that have files in each folder of site-packages."""
    return Counter(
        top for each in distributions() for top in {file.partition("/")[0] for file in _files(each)}
    )


def _required(wheel: Path, extra: str | None) -> dict[str, Distribution]:
    """Return the distributions that a wheel requires with an extra, by name."""
    about = Distribution.discover(path=[str(wheel)])
    (own,) = about
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [(own, name) for name in ("", extra) if name is not None]
    while left:
        asking, chosen = left.pop()
        for requirement in _requirements(asking, chosen):
            name = canonicalize_name(requirement.name)
            wanted = own if name == canonicalize_name(own.name) else distribution(name)
            if wanted is not own:
                found[name] = wanted
            for each in {"", *requirement.extras}:
                if (name, each) not in seen:
                    seen.add((name, each))
                    left.append((wanted, each))
    return found


def _requirements(of: Distribution, extra: str) -> Iterator[Requirement]:
    for text in of.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement
