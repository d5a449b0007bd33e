"""Progress and notes that a command prints to stderr while it works.

A long command shows a progress bar on a terminal, and a few plain lines elsewhere. A command that changes its
user's input before sending it reports that in a sentence.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
Say = Callable[[str], None]

_PLAIN_LINES = 10


def silent(sentence: str) -> None:
    """Ignore a sentence."""


def notes(quiet: bool) -> Say:
    """Return a callback that prints a sentence to stderr, or one that ignores it if `quiet`."""
    return silent if quiet else _print


def _print(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[Report]:
    """Show the progress of some steps while the block runs.

    Args:
        what: Name of the steps.
        quiet: True to show nothing.

    Yields:
        A function to call with the number of finished steps and of all steps.
    """
    if quiet:
        yield lambda step, steps: None
    elif sys.stderr.isatty():
        with _bar(what) as report:
            yield report
    else:
        yield _plain(what)


@contextmanager
def _bar(what: str) -> Iterator[Report]:
    """Show a progress bar on a terminal while the block runs."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def report(step: int, steps: int) -> None:
            # After the last step the server decodes the frames and reports nothing meanwhile.
            bar.update(task, completed=step, total=steps, description="decoding" if step == steps else what)

        yield report


def _plain(what: str) -> Report:
    """Return a report that prints about ten plain lines over the whole work."""
    start_s = time.monotonic()
    # A video that is continued begins after the steps that were done before.
    before: list[int] = []

    def report(step: int, steps: int) -> None:
        if step < 1 or steps < 1:  # this server counts steps in another way
            return
        if not before:
            before.append(step - 1)
        if step * _PLAIN_LINES // steps == (step - 1) * _PLAIN_LINES // steps:
            return
        elapsed_s = time.monotonic() - start_s
        remaining_s = elapsed_s / max(1, step - before[0]) * (steps - step)
        line = f"{what} {step}/{steps}, {elapsed_s:.1f} s elapsed, {remaining_s:.1f} s remaining"
        print(line, file=sys.stderr, flush=True)

    return report
