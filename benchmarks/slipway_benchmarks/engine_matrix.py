"""Build of every component of every family in every precision for several GPUs, on tiny checkpoints.

``python -m slipway_benchmarks.engine_matrix`` (``make engines``) exports each graph once for each precision
that ``slipway export --engine tensorrt-rtx`` offers, with its verification in ONNX Runtime, and then builds
its engine for each target. Each outcome is written as soon as it is known, so that an interrupted run
continues. The page is written from the outcomes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from slipway_benchmarks.precision_matrix import PRESET
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.tensorrt.build import build_engine
from slipway_export.engines.tensorrt.check import attention_operations, plan_of_graph
from slipway_export.engines.tensorrt.choice import EngineChoice, check_target
from slipway_export.engines.tensorrt.plan import EngineOptions, Profiles
from slipway_export.families import families
from slipway_export.graph import traces
from slipway_export.graph.dialect import refusal
from slipway_export.options import ExportOptions
from slipway_export.progress import format_bytes
from slipway_export.run import plan_of, run_export
from slipway_export.spec import Component, Engine, Family, Precision
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.runtime.tensorrt.library import Library

TARGETS = ("sm80", "sm89", "sm120")
_HEAD = """\
# TensorRT engines: what was built

`make engines` writes this page. It exports every graph of the tiny checkpoint of each family in every
precision that `slipway export --engine tensorrt-rtx` offers, verifies the graph against PyTorch in ONNX
Runtime, and builds its engine for three GPUs with the builder of TensorRT-RTX {version}, on a machine without
a GPU. Nothing was executed. [TensorRT](../learn/tensorrt.md) describes the engines.

The column `error` has the largest relative L2 error of the verified graph and its bound. A cell of a GPU has
the size of the engine, the time of the builder, and how many of the graph's attentions became a fused kernel;
without a third part the graph has no attention. `refused` is refused by name before any work. A precision
that is missing is not offered, and is refused as well.
"""


@dataclass(frozen=True)
class Build:
    """Outcome of a graph in one precision.

    Attributes:
        error: Largest relative L2 error of an output; None if the export failed.
        bound: Bound of that error.
        attention: Number of attentions in the graph.
        cells: Text of each target's cell.
        failed: Reasons of what failed.
        date: Day of the run.
    """

    error: float | None
    bound: float | None
    attention: int
    cells: dict[str, str]
    failed: tuple[str, ...]
    date: str


def graphs_of(family: Family, checkpoint: Path) -> Iterator[tuple[str | None, Component, Precision]]:
    """Yield each graph of a family and its variants once, with each precision that is offered."""
    seen: set[str] = set()
    for variant in (None, *family.variants):
        with open_checkpoint(family.variant(variant), str(checkpoint)) as opened:
            axes = axes_of(family, opened, {})
            components = plan_of(family, opened, variant, axes, Engine.TENSORRT_RTX).components
        for component in components:
            if component.label in seen:
                continue
            seen.add(component.label)
            for precision in Precision:
                if refusal(component, precision, Engine.TENSORRT_RTX) is None:
                    yield variant, component, precision


def build(family: Family, variant: str | None, component: Component, precision: Precision, checkpoint: Path,
          scratch: Path) -> Build:  # fmt: skip
    """Export, verify and build a graph.

    Args:
        family: Family of the component.
        variant: Variant of the family that has it.
        component: Component of the graph.
        precision: Precision of the graph.
        checkpoint: Folder of the tiny checkpoint.
        scratch: Folder to work in.
    """
    graph, today = scratch / "graph.onnx", time.strftime("%Y-%m-%d")
    options = ExportOptions(
        str(checkpoint),
        output=graph,
        engine=Engine.TENSORRT_RTX,
        precision=precision,
        components=(component.label,),
        variant=variant,
        fresh=True,
        force=True,
    )
    try:
        rows = run_export(family, options).rows
    except SlipwayError as error:
        return Build(None, None, 0, {}, (str(error),), today)
    worst = max(rows, key=lambda row: row.relative_l2 / row.bound.relative_l2 if row.bound.relative_l2 else 0)
    attention, cells, failed = attention_operations(graph), {}, []
    version = Library.RTX.installed_version or ""
    for target in TARGETS:
        choice = EngineChoice(
            Library.RTX, version, (target,), Profiles.FLEXIBLE, EngineOptions(), placed=False
        )
        try:
            check_target(component, precision, choice)
        except InvalidRequest:
            cells[target] = "refused"
            continue
        report = build_engine(plan_of_graph(graph, choice))
        fused = f", {report.fused_attention} of {attention}" if attention else ""
        cells[target] = f"{format_bytes(report.engine_bytes)}, {report.build_s:.1f} s{fused}"
        if not report.built:
            cells[target] = "fails"
            failed += [f"{target}: {error.text}" for error in report.errors]
    return Build(worst.relative_l2, worst.bound.relative_l2, attention, cells, tuple(failed), today)


def run_family(family: Family, folder: Path) -> Iterator[tuple[str, Build]]:
    """Build the graphs of a family whose outcome is unknown or was a failure."""
    known = read(folder, family)
    with tempfile.TemporaryDirectory(prefix="slipway-engines-") as scratch:
        checkpoint = Path(scratch) / PRESET
        checkpoint.mkdir()
        family.presets[PRESET].write(checkpoint, 0)
        for variant, component, precision in graphs_of(family, checkpoint):
            key = _key(variant, component.label, precision)
            if key in known and not known[key].failed:
                continue
            known[key] = build(family, variant, component, precision, checkpoint, Path(scratch))
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({name: asdict(each) for name, each in known.items()}, indent=1)
            (folder / f"{family.name}.json").write_text(text + "\n", encoding="utf-8")
            yield key, known[key]


def read(folder: Path, family: Family) -> dict[str, Build]:
    """Return the known outcomes of a family, by the key of the graph and its precision."""
    path = folder / f"{family.name}.json"
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return {key: replace(Build(**each), failed=tuple(each["failed"])) for key, each in content.items()}


def page(folder: Path) -> str:
    """Return the page of the known outcomes."""
    parts = [_HEAD.format(version=Library.RTX.installed_version)]
    for family in families():
        known = read(folder, family)
        if not known:
            continue
        dates = sorted({each.date for each in known.values()})
        lines = [f"## {family.name} ({' to '.join(dict.fromkeys((dates[0], dates[-1])))})", ""]
        lines.append(f"| graph | precision | error | {' | '.join(TARGETS)} |")
        lines.append("| --- " * (3 + len(TARGETS)) + "|")
        for key, each in known.items():
            label, precision = key.rsplit(" ", 1)
            error = "fails" if each.error is None else f"{each.error:.1e} of {each.bound:g}"
            cells = " | ".join(each.cells.get(target, "fails") for target in TARGETS)
            lines.append(f"| {label} | {precision} | {error} | {cells} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _key(variant: str | None, label: str, precision: Precision) -> str:
    return f"{label}{f' (`--variant {variant}`)' if variant else ''} {precision.value}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the graphs, print each outcome, and write the page; return 1 where one failed."""
    parser = argparse.ArgumentParser(prog="slipway_benchmarks.engine_matrix", description=main.__doc__)
    names = [family.name for family in families()]
    parser.add_argument("--family", action="append", choices=names, help="only this family; may be repeated")
    parser.add_argument("--outcomes", type=Path, default=Path("out/engines"), help="folder of the outcomes")
    default_page = Path("docs/measurements/tensorrt.md")
    parser.add_argument("--page", type=Path, default=default_page, help="the page to write")
    options = parser.parse_args(arguments)
    if Library.RTX.installed_version is None:
        parser.error("TensorRT-RTX must be installed; try pip install '.[tensorrt-rtx]'")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="slipway-traces-") as folder:
        os.environ.setdefault(traces.VARIABLE, folder)
        for family in families():
            if options.family and family.name not in options.family:
                continue
            for key, outcome in run_family(family, options.outcomes):
                shown = " | ".join(outcome.cells.values())
                print(f"{family.name} {key}: {shown} {'; '.join(outcome.failed)}", flush=True)
                failed += bool(outcome.failed)
    options.page.write_text(page(options.outcomes), encoding="utf-8")
    print(f"{options.page} written; {failed} graphs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
