"""Test of every combination of component, precision and engine that the commands offer, on tiny checkpoints.

``python -m slipway_benchmarks.precision_matrix`` (``make matrix``) plans the tiny checkpoint of each family,
asks :func:`slipway_export.graph.dialect.refusal` which combinations are offered, and runs all of them with
:func:`slipway_export.run.run_export`, including those that must be refused. Each outcome is written to the
family's file as soon as it is known, so that an interrupted run continues. The page is written from these
files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import families
from slipway_export.graph import traces
from slipway_export.graph.dialect import refusal
from slipway_export.options import ExportOptions
from slipway_export.run import plan_of, run_export
from slipway_export.spec import Component, Engine, Family, Precision
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError

PRESET = "tiny"
ENGINES = tuple(engine for engine in Engine if engine is not Engine.TENSORRT_RTX)
"""Engines of the page; the graphs of ``tensorrt-rtx`` are those of ``tensorrt``."""
NOT_OFFERED, NOT_RUN = "—", "not run"
_HEAD = """\
# Precisions: what each engine makes of each component

`make matrix` writes this page. It exports the tiny checkpoint of each family in every combination of
component, precision and engine that the commands offer, verifies the result against PyTorch in float32, and
checks that `slipway export` refuses every other combination before any work. [engines.md](engines.md)
describes the engines. The graphs of `tensorrt-rtx` are those of `tensorrt`.

A cell holds the relative L2 error of the output that is closest to its bound, over all points of
verification, and the bound; the largest absolute error and the cosine are within their bounds too.
`{not_offered}` is not offered: `slipway export` refuses it and names the component, the precision and the
engine. `{not_run}` is offered, but no run of it is recorded here. An export with `--precision` for all
components keeps those in float32 that do not have the precision, and says so.
"""


@dataclass(frozen=True)
class Cell:
    """One combination of component, precision and engine.

    Attributes:
        variant: Name of the family's variant; None for its own plan.
        component: Name of the component, whose graphs are exported together.
        precision: Precision of its graphs.
        engine: Engine that the graphs are for.
        refused: Reason why the combination is not offered; None if it is offered.
    """

    variant: str | None
    component: str
    precision: Precision
    engine: Engine
    refused: str | None

    @property
    def key(self) -> str:
        """Name of the cell in the file of its family."""
        return f"{self.variant or ''}/{self.component}/{self.precision.value}/{self.engine.value}"


@dataclass(frozen=True)
class Outcome:
    """Outcome of running one combination.

    Attributes:
        text: Outcome for people, one line.
        passed: True if the combination was verified, or was refused as it must be.
        error: Largest relative L2 error of an output; None if nothing was verified.
        bound: Bound of that error.
        date: Day of the run.
    """

    text: str
    passed: bool
    error: float | None
    bound: float | None
    date: str


def cells_of(family: Family, checkpoint: Path) -> list[Cell]:
    """Return all combinations of a family, including those that are not offered.

    A component of a variant is not listed again if the family's own plan or an earlier variant has it.

    Args:
        family: The family.
        checkpoint: Folder of its tiny checkpoint.
    """
    seen: set[tuple[str, ...]] = set()
    cells = []
    for variant in (None, *family.variants):
        with open_checkpoint(family.variant(variant), str(checkpoint)) as opened:
            by_engine = {engine: _components(family, opened, variant, engine) for engine in ENGINES}
        for name, graphs in by_engine[Engine.ONNXRUNTIME].items():
            labels = tuple(graph.label for graph in graphs)
            if labels in seen:
                continue
            seen.add(labels)
            cells += [
                Cell(variant, name, precision, engine, _refused(by_engine[engine][name], precision, engine))
                for precision in Precision
                for engine in ENGINES
            ]
    return cells


def _components(
    family: Family, checkpoint: Checkpoint, variant: str | None, engine: Engine
) -> dict[str, list[Component]]:
    """Return the graphs of each component, by its name."""
    axes = axes_of(family, checkpoint, {})
    found: dict[str, list[Component]] = {}
    for component in plan_of(family, checkpoint, variant, axes, engine).components:
        found.setdefault(component.name, []).append(component)
    return found


def _refused(graphs: Sequence[Component], precision: Precision, engine: Engine) -> str | None:
    """Return the reason why none of a component's graphs is offered; None if at least one is.

    A graph that lacks a precision stays in float32.
    """
    reasons = [refusal(graph, precision, engine) for graph in graphs]
    return reasons[0] if all(reasons) else None


def run_cell(family: Family, cell: Cell, checkpoint: Path, scratch: Path) -> Outcome:
    """Export and verify a combination, or check that it is refused before any work.

    Args:
        family: The family.
        cell: The combination.
        checkpoint: Folder of the family's tiny checkpoint.
        scratch: Folder to work in; nothing is placed there.
    """
    reports: list[str] = []
    options = ExportOptions(
        str(checkpoint),
        scratch / "repository",
        engine=cell.engine,
        precisions={cell.component: cell.precision},
        components=(cell.component,),
        variant=cell.variant,
        check_only=True,
        fresh=True,
    )
    started, today = time.monotonic(), time.strftime("%Y-%m-%d")
    try:
        rows = run_export(family, options, reports.append).rows
    except SlipwayError as error:
        expected = cell.refused is not None and isinstance(error, InvalidRequest) and not reports
        text = f"{'refused' if expected else 'FAILED'}: {error}"
        return Outcome(text, expected, None, None, today)
    if cell.refused is not None:
        return Outcome("FAILED: must be refused, but was exported", False, None, None, today)
    worst = max(rows, key=lambda row: row.relative_l2 / row.bound.relative_l2 if row.bound.relative_l2 else 0)
    largest, bound = worst.relative_l2, worst.bound.relative_l2
    took = f"{time.monotonic() - started:.0f} s"
    text = f"built and verified, relative L2 {largest:.1e} <= {bound:g}, in {took}"
    return Outcome(text, True, largest, bound, today)


def read(folder: Path, family: Family) -> dict[str, Outcome]:
    """Return the known outcomes of a family, by the cell's key."""
    path = folder / f"{family.name}.json"
    if not path.is_file():
        return {}
    return {key: Outcome(**each) for key, each in json.loads(path.read_text(encoding="utf-8")).items()}


def run_family(
    family: Family, folder: Path, components: Sequence[str] = ()
) -> Iterator[tuple[Cell, Outcome]]:
    """Run the combinations of a family whose outcome is unknown or was a failure.

    Args:
        family: The family.
        folder: Folder of the outcomes.
        components: Names of the components to run; all when empty.
    """
    known = read(folder, family)
    with tempfile.TemporaryDirectory(prefix="slipway-matrix-") as scratch:
        checkpoint = _tiny(family, Path(scratch))
        for cell in cells_of(family, checkpoint):
            if components and cell.component not in components:
                continue
            if cell.key in known and known[cell.key].passed:
                continue
            known[cell.key] = run_cell(family, cell, checkpoint, Path(scratch))
            text = json.dumps({key: asdict(outcome) for key, outcome in known.items()}, indent=1)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{family.name}.json").write_text(text + "\n", encoding="utf-8")
            yield cell, known[cell.key]


def _tiny(family: Family, folder: Path) -> Path:
    """Write the family's tiny checkpoint into a folder with a fixed name.

    Some families name a component after its folder.
    """
    checkpoint = folder / PRESET
    checkpoint.mkdir()
    family.presets[PRESET].write(checkpoint, 0)
    return checkpoint


def page(folder: Path) -> str:
    """Return the page of the known outcomes.

    Args:
        folder: Folder of the outcomes.
    """
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "onnx", "onnxruntime"))
    parts = [_HEAD.format(not_offered=NOT_OFFERED, not_run=NOT_RUN)]
    parts.append(f"Run on a CPU ({platform.machine()}) with {libraries}.\n")
    for family in families():
        with tempfile.TemporaryDirectory(prefix="slipway-matrix-") as scratch:
            cells = cells_of(family, _tiny(family, Path(scratch)))
        parts.append(section(family.name, cells, read(folder, family)))
    return "\n".join(parts)


def section(name: str, cells: Sequence[Cell], known: dict[str, Outcome]) -> str:
    """Return the section of the page for one family.

    Args:
        name: Name of the family.
        cells: Combinations of the family.
        known: Outcomes, by the cell's key.
    """
    dates = sorted({outcome.date for outcome in known.values() if outcome.error is not None})
    when = f" ({dates[0]} to {dates[-1]})" if len(dates) > 1 else f" ({dates[0]})" if dates else ""
    lines = [f"## {name}{when}", ""]
    lines.append(f"| component | precision | {' | '.join(ENGINES)} |")
    lines.append("| --- " * (2 + len(ENGINES)) + "|")
    rows: dict[tuple[str, Precision], list[str]] = {}
    for cell in cells:
        of_variant = f"{cell.component} (`--variant {cell.variant}`)" if cell.variant else cell.component
        rows.setdefault((of_variant, cell.precision), []).append(_shown(cell, known.get(cell.key)))
    for (component, precision), shown in rows.items():
        if any(text != NOT_OFFERED for text in shown):
            lines.append(f"| {component} | {precision.value} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def _shown(cell: Cell, outcome: Outcome | None) -> str:
    if cell.refused is not None:
        return NOT_OFFERED
    if outcome is None or outcome.error is None:
        return NOT_RUN if outcome is None else "fails"
    return f"{outcome.error:.1e} of {outcome.bound:g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the combinations, print each outcome, and write the page; return 1 where one failed."""
    parser = argparse.ArgumentParser(prog="slipway_benchmarks.precision_matrix", description=main.__doc__)
    names = [family.name for family in families()]
    parser.add_argument("--family", action="append", choices=names, help="only this family; may be repeated")
    parser.add_argument("--component", action="append", default=[], help="only this component")
    parser.add_argument("--outcomes", type=Path, default=Path("out/matrix"), help="folder of the outcomes")
    default_page = Path("docs/reference/precisions.md")
    parser.add_argument("--page", type=Path, default=default_page, help="the page to write")
    options = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="slipway-traces-") as folder:
        os.environ.setdefault(traces.VARIABLE, folder)
        for family in families():
            if options.family and family.name not in options.family:
                continue
            for cell, outcome in run_family(family, options.outcomes, options.component):
                variant = f" {cell.variant}" if cell.variant else ""
                where = f"{family.name}{variant} {cell.component} {cell.precision.value} {cell.engine.value}"
                print(f"{where}: {outcome.text}", flush=True)
                failed += not outcome.passed
    options.page.write_text(page(options.outcomes), encoding="utf-8")
    print(f"{options.page} written; {failed} combinations failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
