"""Reports of an export or a verification: tables of 80 columns for people, JSON documents for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slipway_export.commands.terminal import print_parity

if TYPE_CHECKING:
    from slipway_export.run import ExportResult
    from slipway_export.sizing.budget import LeftOut
    from slipway_export.verification.comparison import ParityRow


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
        "layouts": dict(result.layouts),
        "parity": parity_document(result.rows),
        "not_verified": [asdict(left) for left in result.left_out],
        "engines": {label: report.to_json() for label, report in result.engines.items()},
    }


def _print_left_out(left_out: Sequence[LeftOut], repository: Path | None) -> None:
    for left in left_out:
        typer.echo(f"not verified here: {left.text}")
    if left_out and repository is not None:
        names = ",".join(dict.fromkeys(left.point for left in left_out))
        typer.echo(f"to verify there:   slipway verify {repository} --points {names}")
