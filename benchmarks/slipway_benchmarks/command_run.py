"""Run of a benchmark by its command: progress on stderr, tables on stdout, JSON and a chart in a folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slipway_serving.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

Result = TypeVar("Result")


def measure(
    name: str,
    run: Callable[[Callable[[str], None]], Result],
    to_json: Callable[[Result, Mapping[str, Any]], dict[str, Any]],
    draw: Callable[[Result, Path], None],
    show: Callable[[Console, Result], None],
    output: Path,
    quiet: bool,
    check: Callable[[Result], None] = lambda _: None,
) -> None:
    """Run a benchmark; write its JSON file and its PNG chart, show its tables and say on what it ran.

    Last of all, `check` raises an error if the result is below a gate.
    """
    from slipway_loadtests.json_report import write_json
    from slipway_loadtests.machine import machine_facts, machine_lines

    with measuring(output, quiet) as (report, console):
        machine = machine_facts()
        result = run(report)
        data, chart = output / f"{name}.json", output / f"{name}.png"
        write_json(to_json(result, machine), data)
        draw(result, chart)
        show(console, result)
        for line in (*machine_lines(machine), f"written to {data} and {chart}"):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    check(result)


@contextmanager
def measuring(output: Path, quiet: bool) -> Iterator[tuple[Callable[[str], None], Console]]:
    """Make the folder; give progress on stderr and a console for the tables on stdout.

    Raises:
        InvalidRequest: the folder cannot be made.
    """
    from rich.console import Console

    from slipway_export.commands.terminal import quiet_libraries

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"bench: output must be a folder that can be made, got {output} ({error})"
        ) from None
    progress = Console(stderr=True, quiet=quiet)
    # A file or a pipe has no width to fit into.
    console = Console(quiet=quiet, width=None if sys.stdout.isatty() else 180)
    with quiet_libraries():
        yield lambda line: progress.print(line, highlight=False, markup=False), console
