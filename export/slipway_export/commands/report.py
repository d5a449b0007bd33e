"""Reports of an export or a verification: tables of 80 columns for people, JSON documents for scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from slipway_export.run import ExportResult
    from slipway_export.sizing.budget import LeftOut
    from slipway_export.verification.comparison import ParityRow

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


def parity_document(rows: Sequence[ParityRow]) -> list[dict[str, Any]]:
    """Return the rows of a parity report in the form of the JSON document."""
    return [asdict(row) | {"passed": not row.failures} for row in rows]


def print_export(result: ExportResult, repository: Path | None, output: Path | None) -> None:
    """Print an export's parity, the points that were not verified, and the models that were placed."""
    print_parity(result.rows)
    _print_left_out(result.left_out, repository)
    what = f"{len(result.models)} models" if output is None else "1 graph"
    done = f"placed in {repository or output}" if result.placed else "verified, not placed (--check-only)"
    names = f": {', '.join(result.models)}" if result.models else ""
    typer.echo(f"{what} {done} in {result.elapsed_s:.0f} s{names}")


def export_document(result: ExportResult, repository: Path | None, output: Path | None) -> dict[str, Any]:
    """Return the JSON document of an export."""
    return {
        "repository": None if repository is None else str(repository),
        "output": None if output is None else str(output),
        "models": list(result.models),
        "placed": result.placed,
        "elapsed_s": result.elapsed_s,
        "parity": parity_document(result.rows),
        "not_verified": [asdict(left) for left in result.left_out],
    }


def _print_left_out(left_out: Sequence[LeftOut], repository: Path | None) -> None:
    for left in left_out:
        typer.echo(f"not verified here: {left.text}")
    if left_out and repository is not None:
        names = ",".join(dict.fromkeys(left.point for left in left_out))
        typer.echo(f"to verify there:   slipway verify {repository} --points {names}")
