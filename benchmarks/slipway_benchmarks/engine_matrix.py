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
from dataclasses import asdict, dataclass
from pathlib import Path

from slipway_benchmarks.precision_matrix import PRESET
from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.tensorrt.check import attention_operations
from slipway_export.engines.tensorrt.choice import EngineChoice, check_target
from slipway_export.engines.tensorrt.plan import EngineOptions, Profiles
from slipway_export.engines.tensorrt.requested import EngineRequest
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
Runtime, and builds one engine for three kinds of GPU with the builder of TensorRT-RTX {version}, on a machine
without a GPU. Nothing was executed. [TensorRT](../learn/tensorrt.md) describes the engines.

`error` is the largest relative L2 error of the verified graph, beside its bound. `targets` are the GPUs that
the engine was built for; of {targets}, those that are missing are refused by name before any work, because
they have no kernels of the precision. `fused` tells how many of the graph's attentions became a fused kernel;
a graph without attention has none to tell. A precision that is missing is not offered, and is refused as
well.
"""


@dataclass(frozen=True)
class Build:
    """Outcome of a graph in one precision.

    Attributes:
        error: Largest relative L2 error of an output; None if the export failed.
        bound: Bound of that error.
        attention: Number of attentions in the graph.
        fused: Number of fused attention kernels in the engine.
        targets: GPUs that the engine was built for.
        engine_bytes: Size of the engine, in bytes.
        build_s: Time of the builder, in seconds.
        failed: Reason why the graph was not verified or not built; empty if it was.
        date: Day of the run.
    """

    error: float | None
    bound: float | None
    attention: int
    fused: int
    targets: tuple[str, ...]
    engine_bytes: int
    build_s: float
    failed: str
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
    targets = _targets(component, precision)
    options = ExportOptions(
        str(checkpoint),
        output=graph,
        engine=Engine.TENSORRT_RTX,
        tensorrt=EngineRequest(targets),
        precision=precision,
        components=(component.label,),
        variant=variant,
        fresh=True,
        force=True,
    )
    try:
        result = run_export(family, options)
    except SlipwayError as error:
        return Build(None, None, 0, 0, targets, 0, 0.0, str(error), today)
    worst = max(
        result.rows, key=lambda row: row.relative_l2 / row.bound.relative_l2 if row.bound.relative_l2 else 0
    )
    report = result.engines[component.label]
    return Build(
        worst.relative_l2,
        worst.bound.relative_l2,
        attention_operations(graph),
        report.fused_attention,
        targets,
        report.engine_bytes,
        report.build_s,
        "",
        today,
    )


def _targets(component: Component, precision: Precision) -> tuple[str, ...]:
    """Return the targets that are not refused for a precision."""
    able = []
    for target in TARGETS:
        choice = EngineChoice(Library.RTX, "", (target,), Profiles.FLEXIBLE, EngineOptions(), placed=False)
        try:
            check_target(component, precision, choice)
        except InvalidRequest:
            continue
        able.append(target)
    return tuple(able)


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
    return {key: Build(**{**each, "targets": tuple(each["targets"])}) for key, each in content.items()}


def page(folder: Path) -> str:
    """Return the page of the known outcomes."""
    parts = [_HEAD.format(version=Library.RTX.installed_version, targets=", ".join(TARGETS))]
    for family in families():
        known = read(folder, family)
        if not known:
            continue
        dates = sorted({each.date for each in known.values()})
        lines = [f"## {family.name} ({' to '.join(dict.fromkeys((dates[0], dates[-1])))})", ""]
        lines.append("| graph | precision | error | targets | engine | built in | fused |")
        lines.append("| --- " * 7 + "|")
        for key, each in known.items():
            label, precision = key.rsplit(" ", 1)
            lines.append(f"| {label} | {precision} | {' | '.join(_shown(each))} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _shown(build: Build) -> tuple[str, ...]:
    targets = ", ".join(build.targets)
    if build.failed:
        return ("fails", targets, "", "", "")
    fused = f"{build.fused} of {build.attention}" if build.attention else ""
    size, seconds = format_bytes(build.engine_bytes), f"{build.build_s:.1f} s"
    return (f"{build.error:.1e} of {build.bound:g}", targets, size, seconds, fused)


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
                print(f"{family.name} {key}: {' | '.join(_shown(outcome))} {outcome.failed}", flush=True)
                failed += bool(outcome.failed)
    options.page.write_text(page(options.outcomes), encoding="utf-8")
    print(f"{options.page} written; {failed} graphs failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
