"""One export from beginning to end: checkpoint → graphs → parity → repository.

`run_export` goes through the components of a family's plan one by one (`repository/staged_export.py`: load,
reference, graph, verify). It stages everything beside the repository's models and places it only if every
output of every graph is within its bounds. Work that would repeat what was staged or placed before is reused
(`repository/resume.py`). A running server is notified of each placed model; if it cannot load one, the export
restores the repository.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipway_export.checkpoint.axes import axes_of
from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.hub_needs import Wanted
from slipway_export.checkpoint.layouts.chosen_files import layouts_of
from slipway_export.checkpoint.lora.beside import check_beside
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.decisions import Decisions, decide
from slipway_export.engines.tensorrt.report import BuildReport
from slipway_export.graph.dialect import check_precision, refusal
from slipway_export.graph.file import check_own, place_file, staged_file, write_report
from slipway_export.graph.opset import LARGEST_OPSET, choose_opset
from slipway_export.options import ExportOptions
from slipway_export.progress import Progress, Report
from slipway_export.repository.export_source import ExportSource
from slipway_export.repository.load_check import check_loadable
from slipway_export.repository.placement import check_placements
from slipway_export.repository.publish import add_canceller, check_replaceable, placing
from slipway_export.repository.resume import FinishedGraphs
from slipway_export.repository.staged_export import (
    StagedExport,
    select_stepped,
    served_model_names,
)
from slipway_export.repository.staging import staging
from slipway_export.sizing.budget import LeftOut, Verification, all_points, choose_for_machine
from slipway_export.sizing.engine_needs import with_builder
from slipway_export.sizing.machine import check_device
from slipway_export.sizing.resource_check import (
    Requirements,
    check_disk,
    check_memory,
    graph_requirements,
    reporting_full_disk,
    torch_requirements,
)
from slipway_export.sizing.score_limit import check_scores
from slipway_export.spec import (
    BATCH,
    AuthoredModel,
    Axis,
    Component,
    Engine,
    Family,
    Plan,
    Precision,
    Stepped,
)
from slipway_export.verification.comparison import ParityRow, check_parity
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError, raise_all

Publish = Callable[[str], None]
"""Callback that tells a running server that the named model was placed, replaced or restored."""


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Args:
        rows: Rows of the parity table.
        models: Names of the models that it staged; none for a single graph in a file.
        placed: True if the models, or the graph's file, are in place now.
        left_out: Points at which graphs were not verified.
        elapsed_s: Duration of the whole export, in seconds.
        engines: Reports of the engines that it built, by label of the graph; those of reused graphs are
        missing.
        layouts: Layout or variant of the parts that were not in the libraries' layout, by name.
    """

    rows: tuple[ParityRow, ...]
    models: tuple[str, ...]
    placed: bool
    left_out: tuple[LeftOut, ...] = ()
    elapsed_s: float = field(default=0.0, compare=False)
    engines: Mapping[str, BuildReport] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)


def run_export(
    family: Family,
    options: ExportOptions,
    report: Report = lambda _: None,
    publish: Publish = lambda _: None,
) -> ExportResult:
    """Export a checkpoint of a family into a model repository, or one graph of it into a file.

    Args:
        family: Family of the checkpoint.
        options: Options of the export.
        report: Callback that receives one line before each long piece of work.
        publish: Callback that receives the name of each placed model. If it raises, nothing stays placed.

    Raises:
        InvalidRequest: The checkpoint, an option, the repository or the file is invalid.
        InsufficientResources: The disk or the memory is too small for the export.
        ExportFailed: torch cannot trace a network with the described dynamic shapes.
        ParityFailed: An output is outside its bounds.
    """
    started = time.monotonic()
    if options.engine is not Engine.TORCH:  # PyTorch may serve each component in another precision.
        for precision in (options.precision, *options.precisions.values()):
            check_precision(options.engine, precision)
    check_device(options.verify_device)
    family = family.variant(options.variant)
    opening = open_checkpoint(
        family,
        options.checkpoint,
        options.parts,
        options.files,
        wanted=wanted_of(family, options),
        requested=options.additions,
        variant_file=options.variant_file,
        report=report,
    )
    with opening as checkpoint:
        check_beside(family, checkpoint, options.additions)
        axes = _axes(family, checkpoint, options)
        layouts = layouts_of(checkpoint, [part.name for part in family.parts])
        for part, layout in layouts.items():
            report(f"part {part} is read as {layout}")
        with checkpoint.recording() as planned:
            plan = plan_of(family, checkpoint, options.variant, axes, options.engine)
        source = ExportSource(family, checkpoint, axes, plan, planned, options)
        if options.output is not None:
            with reporting_full_disk(options.output):
                rows, export = _export_file(source, options.output, report)
            names: list[str] = []
        else:
            assert options.repository is not None  # ExportOptions requires it if there is no output.
            with reporting_full_disk(options.repository):
                rows, export, names = _export_models(source, options.repository, report, publish)
    placed_now, elapsed = not options.check_only, time.monotonic() - started
    left_out = export.finished.left_out
    return ExportResult(tuple(rows), tuple(names), placed_now, left_out, elapsed, export.engines, layouts)


def _export_models(
    source: ExportSource, repository: Path, report: Report, publish: Publish
) -> tuple[list[ParityRow], StagedExport, list[str]]:
    """Export the components into the repository, together with their authored models."""
    family, plan, options = source.family, source.plan, source.options
    components, authored = _select(family, plan, options)
    exported = [
        c for c in components if c.name not in options.placements or not options.placements[c.name].server
    ]
    check_choices(components, options)
    decisions = decide(components, exported, options)
    graphs = [component for component in exported if component.label not in decisions.torch]
    opset = choose_opset(graphs, options.requested_precision, options.opset, _strictest(graphs, options))
    check_scores(graphs, options.engine_of, options.placements, report)
    names = served_model_names(family, components, authored)
    if not options.force:
        check_replaceable(repository, names, source.digests.of)
    for line in _other_precisions(exported, options):
        report(line)
    with staging(repository, names) as staged:
        export = _prepare(source, exported, opset, staged, report, decisions)
        rows = export.build(plan, exported)
        check_parity(rows)
        export.finish(components, authored, rows)
        check_loadable(staged, names, repository)
        if not options.check_only:
            report(f"placing {len(names)} models in {repository}")
            _place(staged, repository, names, publish)
    return rows, export, names


def _export_file(source: ExportSource, output: Path, report: Report) -> tuple[list[ParityRow], StagedExport]:
    """Export the graph of one component into a file."""
    plan, options = source.plan, source.options
    component = _select_graph(source.family, plan, options)
    _check_precisions([component], options)
    decisions = decide([component], [component], options)
    own = source.family.graph_file
    usual = own.opset if own is not None and own.label == component.label else None
    opset = choose_opset([component], options.requested_precision, options.opset, options.engine, usual)
    if not options.force:
        check_own(output)
    with staged_file(output) as staged:
        export = _prepare(source, [component], opset, staged.parent, report, decisions, graph=staged)
        rows = export.build(plan, [component])
        check_parity(rows)
        write_report(staged, {"component": component.label, **export.facts([component], rows)})
        if not options.check_only:
            report(f"placing {output}")
            place_file(staged, output)
    return rows, export


def _prepare(
    source: ExportSource,
    components: Sequence[Component],
    opset: int,
    staged: Path,
    report: Report,
    decisions: Decisions,
    graph: Path | None = None,
) -> StagedExport:
    """Reuse finished graphs, check disk and memory for the others, and choose the points of verification."""
    options = source.options
    progress = Progress(report, [component.label for component in components])
    finished = FinishedGraphs(source, _options_that_matter(options, opset), staged, progress, decisions)
    missing, runs = finished.find(components, select_stepped(source.plan, components))
    requirements = {component.label: _requirements(component, options, decisions) for component in missing}
    check_disk(options.repository or options.output or staged, requirements)
    check_memory(requirements)
    verification = _verification(missing, runs, options, requirements, report)
    progress.expect({label: each.parameters for label, each in requirements.items()})
    graphs = Counter(component.name for component in source.plan.components)
    # A single graph in a file has no other graph to share weights with.
    sharing = frozenset(name for name, count in graphs.items() if count > 1 and graph is None)
    return StagedExport(source, opset, verification, staged, progress, finished, graph, sharing, decisions)


def _requirements(component: Component, options: ExportOptions, decisions: Decisions) -> Requirements:
    """Return the disk and memory that a component takes, whatever serves it."""
    if (choice := decisions.torch.get(component.label)) is not None:
        return torch_requirements(component, choice.options.load_precision)
    graph = graph_requirements(component, options.requested_precision(component))
    return with_builder(graph) if component.label in decisions.engines else graph


def _strictest(components: Sequence[Component], options: ExportOptions) -> Engine:
    """Return the engine of some graphs that allows the fewest operator sets, as all of them get the same."""
    engines = {options.engine_of(component) for component in components}
    return min(engines, key=lambda engine: (LARGEST_OPSET[engine], engine), default=options.engine)


def _options_that_matter(options: ExportOptions, opset: int) -> dict[str, object]:
    """Return the options that change a graph or its verification."""
    return {
        "opset": opset,
        "simplify": options.simplify,
        "verify_budget": options.verify_budget,
        "verify_device": options.verify_device,
    }


def _verification(
    components: Sequence[Component],
    runs: Sequence[Stepped],
    options: ExportOptions,
    requirements: Mapping[str, Requirements],
    report: Report,
) -> Verification:
    """Choose the points at which the graphs are verified, and report the estimated time."""
    if not components and not runs:
        return all_points((), ())
    report("estimating what verification takes")
    memory = {label: each.memory_bytes for label, each in requirements.items()}
    return choose_for_machine(components, runs, options.verify_budget, options.verify_device, memory, report)


def _place(staged: Path, repository: Path, names: list[str], publish: Publish) -> None:
    """Place staged models and publish each; if one is refused, restore all and publish the restored ones."""
    published: list[str] = []
    try:
        with placing(staged, repository, names):
            for name in names:
                publish(name)
                published.append(name)
    except SlipwayError:
        for name in published:
            # A server that also refuses the old model has already reported why it refused the new one.
            with contextlib.suppress(SlipwayError):
                publish(name)
        raise


def wanted_of(family: Family, options: ExportOptions) -> Wanted:
    """Return what an export needs of a checkpoint; planning it refuses a wrong checkpoint or option."""

    def plan(checkpoint: Checkpoint) -> Plan:
        axes = _axes(family, checkpoint, options)
        return plan_of(family, checkpoint, options.variant, axes, options.engine)

    return Wanted(plan, options.components)


def components_of(family: Family, checkpoint: Checkpoint, options: ExportOptions) -> list[Component]:
    """Return the components that an export of a checkpoint makes graphs of.

    Raises:
        InvalidRequest: The checkpoint or an option is invalid.
    """
    axes = _axes(family, checkpoint, options)
    return _select(family, plan_of(family, checkpoint, options.variant, axes, options.engine), options)[0]


def check_choices(components: Sequence[Component], options: ExportOptions) -> None:
    """Check the options of an export into a repository, as far as they do not depend on the machine.

    Raises:
        InvalidRequest: A precision, a range of batches or a placement does not fit the components.
    """
    _check_precisions(components, options)
    if not options.components:
        _check_rows(components)
    check_placements(options.placements, tuple(components))


def _axes(family: Family, checkpoint: Checkpoint, options: ExportOptions) -> tuple[Axis, ...]:
    """Return the axes of an export: the checkpoint's ranges, changed by the user's options."""
    axes = axes_of(family, checkpoint, {axis.name: axis for axis in options.axes}, options.sizes)
    return tuple(axis.fixed for axis in axes) if options.fixed_shapes else axes


def plan_of(
    family: Family, checkpoint: Checkpoint, variant: str | None, axes: Sequence[Axis], engine: Engine
) -> Plan:
    """Return the plan of a checkpoint: its components and the authored models around them.

    Args:
        family: Family of the checkpoint.
        checkpoint: Checkpoint whose configuration is read.
        variant: Name of one of the family's variants; the family's own plan when None.
        axes: All axes of the family.
        engine: Engine; ``portable`` replaces some components, and each engine has its own precisions.

    Raises:
        InvalidRequest: The family has no such variant, or the checkpoint does not belong to it.
    """
    with checkpoint.describing(family.name):
        plan = family.variant(variant).plan(checkpoint, axes)
    components = tuple(component.for_engine(engine) for component in plan.components)
    if not engine.is_tensorrt:
        return replace(plan, components=components)
    stepped = tuple(
        replace(
            run,
            first=None if run.first is None else run.first.for_engine(engine),
            next=run.next.for_engine(engine),
        )
        for run in plan.stepped
    )
    return replace(plan, components=components, stepped=stepped)


def _select(
    family: Family, plan: Plan, options: ExportOptions
) -> tuple[list[Component], list[AuthoredModel]]:
    """Return the components of an export, and the authored models that it places."""
    known = list(dict.fromkeys(component.name for component in plan.components))
    if unknown := [name for name in options.components if name not in known]:
        raise InvalidRequest(f"component must be one of {', '.join(known)}, got {', '.join(unknown)}")
    if not options.components:
        return list(plan.components), add_canceller(plan.authored)
    components = [component for component in plan.components if component.name in options.components]
    # A graph that an authored model runs needs that model beside it.
    owners = {f"{family.name}_{component.name}" for component in components if component.graph != "model"}
    return components, [model for model in plan.authored if model.name in owners]


def _check_precisions(components: Sequence[Component], options: ExportOptions) -> None:
    """Refuse a precision that no component has, or that is missing in a component named with it."""
    known = {component.name for component in components}
    problems = [
        f"precision must name an exported component ({', '.join(sorted(known))}), got {name}"
        for name in options.precisions
        if name not in known
    ]
    default = [each for each in components if each.name not in options.precisions]
    refused = [refusal(each, options.precision, options.engine_of(each)) for each in default]
    if all(refused):
        problems += [reason for reason in refused if reason is not None]
    for name, precision in options.precisions.items():
        reasons = [
            refusal(each, precision, options.engine_of(each)) for each in components if each.name == name
        ]
        # A component may have several graphs; those that lack the precision stay in float32.
        if reasons and all(reasons):
            problems += [reason for reason in reasons if reason is not None]
    raise_all("export", list(dict.fromkeys(problems)))


def _other_precisions(components: Sequence[Component], options: ExportOptions) -> Iterator[str]:
    """Yield a line for each set of graphs whose precision differs from the requested one."""
    labels_by_pair: dict[tuple[Precision, Precision], list[str]] = {}
    for component in components:
        requested = options.requested_precision(component)
        if (actual := component.precision(requested)) is not requested:
            labels_by_pair.setdefault((requested, actual), []).append(component.label)
    for (requested, actual), labels in labels_by_pair.items():
        yield f"{actual.value} instead of {requested.value}, which is not offered for: {', '.join(labels)}"


def _check_rows(components: Sequence[Component]) -> None:
    """Refuse batch ranges in which a component cannot answer the models that are placed around it."""
    problems = []
    for component in components:
        axis = next((axis for axis in component.axes if axis.name == BATCH), None)
        if component.rows is None or axis is None:
            continue
        fewest, most = component.rows
        if not axis.min <= fewest <= most <= axis.max:
            problems.append(
                f"axis {axis.name} of {component.label} must include {fewest} to {most}, the batch sizes that"
                f" the models around it send, got {axis.min} to {axis.max}; try"
                f" --component {component.name} to export this model alone"
            )
    raise_all("export", problems)


def _select_graph(family: Family, plan: Plan, options: ExportOptions) -> Component:
    """Return the one graph that the user requested, by its component's name or by its label."""
    usual = () if family.graph_file is None else (family.graph_file.label,)
    named = options.components or usual
    (requested,) = named if len(named) == 1 else ("",)
    found = [c for c in plan.components if requested in (c.name, c.label)]
    if len(found) == 1:
        return found[0]
    labels = ", ".join(component.label for component in found or plan.components)
    got = ", ".join(options.components) or "none"
    several = f", which has {len(found)} graphs" if found else ""
    raise InvalidRequest(
        f"component must name one graph to export to a file: one of {labels}, got {got}{several}"
    )
