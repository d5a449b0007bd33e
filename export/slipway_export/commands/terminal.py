"""Terminal output of the export commands: progress on stderr, tables on stdout, quiet libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from slipway_export.verification.comparison import ParityRow

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
_FILE_WIDTH = 160


def console_of_results(width: int | None = None) -> Console:
    """Return a console on stdout for tables.

    Args:
        width: Width in characters; the terminal's width when None, or 160 for a file or a pipe.
    """
    from rich.console import Console

    return Console(width=width or (None if sys.stdout.isatty() else _FILE_WIDTH), highlight=False)


def print_parity(rows: Sequence[ParityRow], console: Console | None = None) -> None:
    """Print the parity table, which has the worst output of each graph and point.

    Args:
        rows: Rows of the parity report.
        console: Console to print to; stdout when None.
    """
    from rich.markup import escape
    from rich.table import Table

    worst: dict[tuple[str, str], ParityRow] = {}
    for row in rows:
        key = (row.graph, row.point)
        if key not in worst or row.relative_l2 > worst[key].relative_l2:
            worst[key] = row
    shown = console or console_of_results()
    shown.print("Parity with PyTorch: the worst output of each graph and point; manifest.json has all.")
    for graph in dict.fromkeys(row.graph for row in rows):
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("point", no_wrap=True)
        table.add_column("output", overflow="fold")
        for title in ("max abs", "rel. L2", "cosine"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        of_graph = [row for (label, _), row in worst.items() if label == graph]
        for row in of_graph:
            table.add_row(
                row.point.partition(" (")[0],
                row.output,
                f"{row.max_abs:.1e}",
                f"{row.relative_l2:.1e}",
                f"{row.cosine:.7f}",
                "failed" if row.failures else "ok",
            )
        bounds = " or ".join(dict.fromkeys(f"{row.bound.relative_l2:g}" for row in of_graph))
        shown.print(f"\n[bold]{escape(graph)}[/]: relative L2 of at most {bounds}")
        shown.print(table)


@contextmanager
def reporting(console: Console) -> Iterator[Callable[[str], None]]:
    """Show each piece of work: a spinner with elapsed time on a terminal, one line each elsewhere."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    if not console.is_terminal or console.quiet:
        yield lambda line: console.print(line, highlight=False)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda line: progress.update(task, description=line)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep the libraries' own progress bars and notices off the terminal; errors still raise."""
    import logging
    import warnings

    # diffusers imports torchao if it is installed, and torch then logs a notice about it.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for module in ("diffusers", "transformers"):
        _import(f"{module}.utils.logging").set_verbosity_error()
        _import(f"{module}.utils.logging").disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _import(name: str):  # type: ignore[no-untyped-def]
    __import__(name)
    return sys.modules[name]
