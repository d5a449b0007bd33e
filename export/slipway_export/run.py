"""One export from beginning to end: checkpoint → graphs → parity → repository.

`run_export` goes through the components of a family's plan one by one (load, reference, graph,
verify), stages everything beside the repository's models, and places it only when every output of
every graph is within its bounds. What would be the same as staged or placed before is taken from there
(`resume.py`). A running server is told of what was placed; where it cannot load it, the repository is put
back as it was.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from slipway_export.budget import LeftOut, Verification, choose_measured, whole
from slipway_export.checkpoint import Checkpoint, axes_of, open_checkpoint
from slipway_export.config import config_text, model_config
from slipway_export.device import Device
from slipway_export.dialect import check_operators, check_precision
from slipway_export.graph_file import check_own, place_file, staged_file, write_report
from slipway_export.machine import check_device
from slipway_export.onnx import export_graph
from slipway_export.opset import choose_opset
from slipway_export.placement import Place, check_places, set_instances, stage_remote
from slipway_export.progress import Progress, Report
from slipway_export.reads import Digests, Notes
from slipway_export.repository import check_replaceable, placed, stage_authored, write_manifest
from slipway_export.resume import Finished
from slipway_export.room import Weight, check_disk, check_memory, said_when_full, weigh
from slipway_export.spec import (
    DEFAULT_BUDGET,
    AuthoredModel,
    Axis,
    Component,
    Engine,
    Family,
    Plan,
    Precision,
    Stepped,
)
from slipway_export.staging import staging
from slipway_export.verify import ParityRow, check, compute_reference, load_reference, verify
from slipway_export.verify_steps import verify_stepped
from slipway_export.weights import left_on_disk
from slipway_serving.errors import InvalidRequest, SlipwayError, raise_all

Publish = Callable[[str], None]
"""Tells a running server that the repository's model of a name was placed, replaced or put back."""


@dataclass(frozen=True)
class ExportOptions:
    """What the user asked of an export.

    Args:
        checkpoint: preset, folder or hub id; empty where files are given.
        repository: Triton model repository to place the models in.
        engine: what runs the graphs.
        precision: of the graphs.
        precisions: of the graphs of a component that differ, by its name.
        places: where the models of components run, by name; as the configurations say when empty.
        components: names of those to export; all, and the authored models, when empty.
        opset: ONNX operator set version; the precision's default when None.
        simplify: run onnxslim over each graph.
        check_only: export and verify, and place nothing.
        force: replace models that were not written by an export too.
        axes: ranges that replace the defaults.
        variant: name of one of the family's variants; its own plan when None.
        parts: the folder or hub id of each part that does not come from the checkpoint, by name.
        sizes: that axes are traced at, by option of the family's.
        fixed_shapes: every axis has the one size that is traced.
        files: of the checkpoint by role, for a family whose checkpoint may be given so.
        output: the file for the graph of one component, instead of a repository.
        verify_budget: seconds that verification may take on this machine, by the estimate.
        verify_device: what both sides of it run on.
        fresh: make every graph anew, those too that are the same as staged or placed.

    Raises:
        InvalidRequest: the budget is not above 0, both repository and output are given, or none.
    """

    checkpoint: str
    repository: Path | None = None
    engine: Engine = Engine.ONNXRUNTIME
    precision: Precision = Precision.FP32
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    places: Mapping[str, Place] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    opset: int | None = None
    simplify: bool = False
    check_only: bool = False
    force: bool = False
    axes: tuple[Axis, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    fixed_shapes: bool = False
    variant: str | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    output: Path | None = None
    verify_budget: float = DEFAULT_BUDGET
    verify_device: Device = Device.CPU
    fresh: bool = False

    def __post_init__(self) -> None:
        if not self.verify_budget > 0:
            raise InvalidRequest(f"verify-budget must be above 0 seconds, got {self.verify_budget:g}")
        if (self.repository is None) == (self.output is None):
            raise InvalidRequest(
                "export: one of repository and output must be given, got both or none; try --repository DIR"
                " for models to serve, --output FILE.onnx for one graph"
            )
        if self.output is not None and self.places:
            raise InvalidRequest(f"place must be given with --repository only, got {', '.join(self.places)}")

    def asked(self, component: Component) -> Precision:
        """Return the precision that the user asked for, for a component."""
        return self.precisions.get(component.name, self.precision)


@dataclass(frozen=True)
class ExportResult:
    """What an export did.

    Args:
        rows: the parity table.
        models: names of the models that it staged; none for a graph of its own.
        placed: whether they, or the graph's file, are in place now.
        left_out: where graphs were not verified.
        elapsed_s: of the whole export.
    """

    rows: tuple[ParityRow, ...]
    models: tuple[str, ...]
    placed: bool
    left_out: tuple[LeftOut, ...] = ()
    elapsed_s: float = field(default=0.0, compare=False)


def run_export(
    family: Family,
    options: ExportOptions,
    report: Report = lambda _: None,
    publish: Publish = lambda _: None,
) -> ExportResult:
    """Export a checkpoint of a family into a model repository, or one graph of it into a file.

    Args:
        family: what the checkpoint is of.
        options: what to do.
        report: called with one line before each long piece of work.
        publish: called with the name of each placed model; where it raises, nothing stays placed.

    Raises:
        InvalidRequest: the checkpoint, an option, the repository or the file is not as it must be.
        NoRoom: there is too little disk or memory for what is to be made.
        ExportFailed: torch cannot trace a network with the described dynamic shapes.
        ParityFailed: an output is outside its bounds.
    """
    started = time.monotonic()
    if options.engine is Engine.TENSORRT and not options.check_only and options.output is None:
        raise InvalidRequest(
            "engine tensorrt must be used with --check-only, which verifies the graphs that its parser takes:"
            " building its engines is not part of this release, got an export to place"
        )
    for precision in (options.precision, *options.precisions.values()):
        check_precision(options.engine, precision)
    check_device(options.verify_device)
    family = family.variant(options.variant)
    with open_checkpoint(family, options.checkpoint, options.parts, options.files) as checkpoint:
        axes = _axes(family, checkpoint, options)
        with checkpoint.noting() as planned:
            plan = plan_of(family, checkpoint, options.variant, axes, options.engine)
        made_of = _MadeOf(family, checkpoint, plan, planned, options)
        if options.output is not None:
            with said_when_full(options.output):
                rows, left_out = _export_file(made_of, options.output, report)
            names: list[str] = []
        else:
            assert options.repository is not None  # ExportOptions has it so without an output.
            with said_when_full(options.repository):
                rows, left_out, names = _export_models(made_of, options.repository, report, publish)
    placed_now, elapsed = not options.check_only, time.monotonic() - started
    return ExportResult(tuple(rows), tuple(names), placed_now, left_out, elapsed)


@dataclass(frozen=True)
class _MadeOf:
    """What an export is made of: by `options`, the `plan` of a checkpoint, for which `planned` was read."""

    family: Family
    checkpoint: Checkpoint
    plan: Plan
    planned: Notes
    options: ExportOptions
    digests: Digests = field(default_factory=Digests)


def _export_models(
    made_of: _MadeOf, repository: Path, report: Report, publish: Publish
) -> tuple[list[ParityRow], tuple[LeftOut, ...], list[str]]:
    family, plan, options = made_of.family, made_of.plan, made_of.options
    components, authored = _selected(family, plan, options)
    _check_precisions(components, options)
    check_places(options.places, tuple(components))
    exported = [c for c in components if c.name not in options.places or not options.places[c.name].server]
    opset = choose_opset(exported, options.asked, options.opset, options.engine)
    names = _model_names(family, components, authored)
    if not options.force:
        check_replaceable(repository, names, made_of.digests.of)
    with staging(repository, names) as staged:
        export = _prepared(made_of, exported, opset, staged, report)
        rows = export.build(plan, exported)
        check(rows)
        export.finish(components, authored, rows)
        if not options.check_only:
            report(f"placing {len(names)} models in {repository}")
            _place(staged, repository, names, publish)
    return rows, export.finished.left_out, names


def _export_file(
    made_of: _MadeOf, output: Path, report: Report
) -> tuple[list[ParityRow], tuple[LeftOut, ...]]:
    plan, options = made_of.plan, made_of.options
    component = _selected_graph(made_of.family, plan, options)
    _check_precisions([component], options)
    own = made_of.family.graph_file
    usual = own.opset if own is not None and own.label == component.label else None
    opset = choose_opset([component], options.asked, options.opset, options.engine, usual)
    if not options.force:
        check_own(output)
    with staged_file(output) as staged:
        export = _prepared(made_of, [component], opset, staged.parent, report, graph=staged)
        rows = export.build(plan, [component])
        check(rows)
        write_report(staged, {"component": component.label, **export.facts([component], rows)})
        if not options.check_only:
            report(f"placing {output}")
            place_file(staged, output)
    return rows, export.finished.left_out


def _prepared(
    made_of: _MadeOf,
    components: Sequence[Component],
    opset: int,
    staged: Path,
    report: Report,
    graph: Path | None = None,
) -> _Export:
    """Take what need not be made, and see that there is room for the rest and where it is verified."""
    family, checkpoint, options = made_of.family, made_of.checkpoint, made_of.options
    progress = Progress(report, [component.label for component in components])
    finished = Finished(
        checkpoint=checkpoint,
        planned=made_of.planned,
        asked=options.asked,
        options=_options_that_matter(options, opset),
        staged=staged,
        prefix=f"{family.name}_",
        report=progress,
        repository=options.repository,
        output=options.output,
        fresh=options.fresh,
        digests=made_of.digests,
    )
    missing, runs = finished.find(components, runs_of(made_of.plan, components))
    weights = {component.label: weigh(component, options.asked(component)) for component in missing}
    check_disk(options.repository or options.output or staged, weights)
    check_memory(weights)
    verification = _verification(missing, runs, options, weights, report)
    progress.expect({label: weight.parameters for label, weight in weights.items()})
    graphs = Counter(component.name for component in made_of.plan.components)
    # A graph of its own has nobody to share with.
    sharing = frozenset(name for name, count in graphs.items() if count > 1 and graph is None)
    return _Export(
        family, checkpoint, options, opset, verification, staged, progress, finished, graph, sharing
    )


def _options_that_matter(options: ExportOptions, opset: int) -> dict[str, object]:
    """Return the options by which another graph, or another verification of it, would be made."""
    return {
        "opset": opset,
        "engine": options.engine,
        "simplify": options.simplify,
        "verify_budget": options.verify_budget,
        "verify_device": options.verify_device,
    }


def _verification(
    components: Sequence[Component],
    runs: Sequence[Stepped],
    options: ExportOptions,
    weights: Mapping[str, Weight],
    report: Report,
) -> Verification:
    """Choose where the graphs are verified, and say what it takes."""
    if not components and not runs:
        return whole((), ())
    report("estimating what verification takes")
    memory = {label: weight.memory_bytes for label, weight in weights.items()}
    return choose_measured(components, runs, options.verify_budget, options.verify_device, memory, report)


def runs_of(plan: Plan, components: Sequence[Component]) -> list[Stepped]:
    """Return the stepped networks whose graphs are all there."""
    labels = {component.label for component in components}
    return [
        run for run in plan.stepped if {graph.label for graph in (run.first, run.next) if graph} <= labels
    ]


def _place(staged: Path, repository: Path, names: list[str], publish: Publish) -> None:
    """Place staged models and tell of each; where one is refused, put all back and tell of those again."""
    told: list[str] = []
    try:
        with placed(staged, repository, names):
            for name in names:
                publish(name)
                told.append(name)
    except SlipwayError:
        for name in told:
            # A server that refuses the old model too has said why it refused the new one.
            with contextlib.suppress(SlipwayError):
                publish(name)
        raise


def components_of(family: Family, checkpoint: Checkpoint, options: ExportOptions) -> list[Component]:
    """Return the components that an export of a checkpoint makes graphs of.

    Raises:
        InvalidRequest: the checkpoint or an option is not as it must be.
    """
    axes = _axes(family, checkpoint, options)
    return _selected(family, plan_of(family, checkpoint, options.variant, axes, options.engine), options)[0]


def _axes(family: Family, checkpoint: Checkpoint, options: ExportOptions) -> tuple[Axis, ...]:
    """Return the ranges of an export: the checkpoint's, with what the user chose."""
    axes = axes_of(family, checkpoint, {axis.name: axis for axis in options.axes}, options.sizes)
    return tuple(axis.fixed for axis in axes) if options.fixed_shapes else axes


def plan_of(
    family: Family, checkpoint: Checkpoint, variant: str | None, axes: Sequence[Axis], engine: Engine
) -> Plan:
    """Return what a checkpoint becomes.

    Args:
        family: of the checkpoint.
        checkpoint: its configuration is read.
        variant: name of one of the family's; its own plan when None.
        axes: all of the family's.
        engine: may have components in place of others.

    Raises:
        InvalidRequest: the family has no such variant, or the checkpoint is none of it.
    """
    plan = family.variant(variant).plan(checkpoint, axes)
    if engine is not Engine.PORTABLE:
        return plan
    return replace(plan, components=tuple(component.portable or component for component in plan.components))


def _selected(
    family: Family, plan: Plan, options: ExportOptions
) -> tuple[list[Component], list[AuthoredModel]]:
    known = list(dict.fromkeys(component.name for component in plan.components))
    if unknown := [name for name in options.components if name not in known]:
        raise InvalidRequest(f"component must be one of {', '.join(known)}, got {', '.join(unknown)}")
    if not options.components:
        return list(plan.components), list(plan.authored)
    components = [component for component in plan.components if component.name in options.components]
    # A graph of an authored model needs that model around it.
    owners = {f"{family.name}_{component.name}" for component in components if component.graph != "model"}
    return components, [model for model in plan.authored if model.name in owners]


def _check_precisions(components: Sequence[Component], options: ExportOptions) -> None:
    """Refuse a precision that was asked for a component by name and that it has not."""
    known = {component.name: component for component in components}
    problems = []
    for name, precision in options.precisions.items():
        if name not in known:
            problems.append(
                f"precision must be of a component that is exported ({', '.join(known)}), got {name}"
            )
        elif precision not in known[name].tolerance:
            able = ", ".join(known[name].tolerance)
            problems.append(f"precision of {name} must be one of {able}, got {precision.value}")
    raise_all("export", problems)


def _selected_graph(family: Family, plan: Plan, options: ExportOptions) -> Component:
    """Return the one graph that the user asked for, by name of its component or by its label."""
    usual = () if family.graph_file is None else (family.graph_file.label,)
    named = options.components or usual
    (asked,) = named if len(named) == 1 else ("",)
    found = [c for c in plan.components if asked in (c.name, c.label)]
    if len(found) == 1:
        return found[0]
    labels = ", ".join(component.label for component in found or plan.components)
    got = ", ".join(options.components) or "none"
    several = f", which has {len(found)} graphs" if found else ""
    raise InvalidRequest(f"component must name one graph with output: one of {labels}, got {got}{several}")


def _model_names(
    family: Family, components: Sequence[Component], authored: Sequence[AuthoredModel]
) -> list[str]:
    names = [f"{family.name}_{component.name}" for component in components]
    return list(dict.fromkeys([*names, *(model.name for model in authored)]))


@dataclass(frozen=True)
class _Export:
    """The parts of one export that every step of it needs.

    `staged` is the folder to write in; `graph` the file of the one graph that is exported for itself;
    `sharing` has the names of components that are several graphs, whose weights lie on disk once.
    """

    family: Family
    checkpoint: Checkpoint
    options: ExportOptions
    opset: int
    verification: Verification
    staged: Path
    report: Progress
    finished: Finished
    graph: Path | None = None
    sharing: frozenset[str] = frozenset()

    def folder(self, component: Component) -> Path:
        return self.staged / f"{self.family.name}_{component.name}" / "1"

    def path(self, component: Component) -> Path:
        return self.graph or self.folder(component) / f"{component.graph}.onnx"

    def build(self, plan: Plan, components: Sequence[Component]) -> list[ParityRow]:
        """Export and verify the graphs into the staging folder, or take them; return the parity table."""
        rows: list[ParityRow] = []
        left_out = self.verification.left_out
        for component in components:
            self.report.begin(component.label)
            make = partial(self.build_graph, component)
            rows += self.finished.graph(component, self.path(component), make, left_out)
        for run in runs_of(plan, components):
            rows += self.finished.steps(run, partial(self.verify_steps, run), left_out)
        for left in self.staged.rglob("*.widened*"):
            left.unlink()
        return rows

    def verify_steps(self, run: Stepped) -> list[ParityRow]:
        self.report(f"{run.next.label}: verifying {run.steps} steps as one run")
        paths = {graph.label: self.path(graph) for graph in (run.first, run.next) if graph is not None}
        point, device = self.verification.steps[run.next.label], self.options.verify_device
        return verify_stepped(run, paths, self.options.asked(run.next), point, device)

    def build_graph(self, component: Component) -> list[ParityRow]:
        precision = component.precision(self.options.asked(component))
        path = self.path(component)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = "" if precision is self.options.asked(component) else f" (kept in {precision.value})"
        self.report(f"{component.label}: exporting{kept}")
        with left_on_disk():
            module = component.load(Precision.FP32 if precision.is_integer else precision)
        export_graph(
            component,
            module,
            path,
            opset=self.opset,
            precision=precision,
            engine=self.options.engine,
            simplify=self.options.simplify,
            shares=component.name in self.sharing,
            report=self.report,
        )
        del module
        gc.collect()
        check_operators(path, self.options.engine, component.label)
        self.report(f"{component.label}: running PyTorch")
        points, device = self.verification.points[component.label], self.options.verify_device
        reference = compute_reference(component, load_reference(component, device), points, device)
        gc.collect()
        self.report(f"{component.label}: verifying")
        return verify(component, path, reference, precision, device)

    def finish(
        self, components: Sequence[Component], authored: Sequence[AuthoredModel], rows: Sequence[ParityRow]
    ) -> None:
        """Give each staged model its configuration and its manifest."""
        for model in authored:
            stage_authored(model, self.staged)
        for component in components:
            place = self.options.places.get(component.name)
            folder = self.folder(component).parent
            if place is not None and place.server:
                stage_remote(component, folder.name, place, self.staged)
                continue
            if component.graph == "model":
                config = model_config(component, folder.name, self.options.engine)
                (folder / "config.pbtxt").write_text(config_text(config), encoding="utf-8")
            if place is not None:
                set_instances(folder / "config.pbtxt", place)
        for name in _model_names(self.family, components, authored):
            parts = [c for c in components if f"{self.family.name}_{c.name}" == name]
            place = self.options.places.get(parts[0].name) if parts else None
            placed_at = {} if place is None else {"place": place.facts}
            here = [] if place is not None and place.server else parts
            write_manifest(self.staged / name, self.facts(here, rows) | placed_at, self.finished.digests.of)

    def facts(self, parts: Sequence[Component], rows: Sequence[ParityRow]) -> dict[str, Any]:
        """What the manifest says of a model beyond its files."""
        source: dict[str, Any] = {"source": self.checkpoint.source, "commit": self.checkpoint.commit}
        if self.checkpoint.places:
            source["parts"] = {
                name: {"source": place.source, "commit": place.commit}
                for name, place in self.checkpoint.places.items()
            }
        planned = _axes(self.family, self.checkpoint, self.options)
        facts: dict[str, Any] = {
            "family": self.family.name,
            "checkpoint": source,
            "planned_axes": {axis.name: [axis.min, axis.opt, axis.max] for axis in planned},
        }
        if self.options.variant is not None:
            facts["variant"] = self.options.variant
        if parts:
            labels = {part.label for part in parts}
            facts |= {
                "engine": self.options.engine.value,
                "precision": {part.graph: part.precision(self.options.asked(part)).value for part in parts},
                "opset": self.opset,
                "simplified": self.options.simplify,
                "axes": {a.name: [a.min, a.opt, a.max] for part in parts for a in part.axes},
                "parity": [asdict(row) for row in rows if row.graph in labels],
                "not_verified": [asdict(left) for left in self.finished.left_out if left.graph in labels],
                "made": self.finished.facts(parts),
            }
        return facts
