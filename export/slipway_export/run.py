"""One export from beginning to end: checkpoint → graphs → parity → repository.

`run_export` goes through the components of a family's plan one by one (load, reference, graph,
verify), stages everything beside the repository's models, and places it only when every output of
every graph is within its bounds. A running server is told of what was placed; where it cannot load it, the
repository is put back as it was.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from slipway_export.checkpoint import Checkpoint, axes_of, open_checkpoint
from slipway_export.config import config_text, model_config
from slipway_export.dialect import check_operators, check_precision
from slipway_export.onnx import choose_opset, export_graph
from slipway_export.repository import check_replaceable, placed, stage_authored, staging, write_manifest
from slipway_export.spec import AuthoredModel, Axis, Component, Engine, Family, Plan, Precision
from slipway_export.verify import ParityRow, check, compute_reference, verify, verify_stepped
from slipway_serving.errors import InvalidRequest, SlipwayError

Report = Callable[[str], None]
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
        components: names of those to export; all, and the authored models, when empty.
        opset: ONNX operator set version; the precision's default when None.
        simplify: run onnxslim over each graph.
        check_only: export and verify, and place nothing.
        force: replace models that were not written by an export too.
        axes: ranges that replace the defaults.
        variant: name of one of the family's variants; its own plan when None.
        files: of the checkpoint by role, for a family whose checkpoint may be given so.
    """

    checkpoint: str
    repository: Path
    engine: Engine = Engine.ONNXRUNTIME
    precision: Precision = Precision.FP32
    components: tuple[str, ...] = ()
    opset: int | None = None
    simplify: bool = False
    check_only: bool = False
    force: bool = False
    axes: tuple[Axis, ...] = ()
    variant: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportResult:
    """What an export did.

    Args:
        rows: the parity table.
        models: names of the models that it staged.
        placed: whether they are in the repository now.
        elapsed_s: of the whole export.
    """

    rows: tuple[ParityRow, ...]
    models: tuple[str, ...]
    placed: bool
    elapsed_s: float = field(compare=False)


def run_export(
    family: Family,
    options: ExportOptions,
    report: Report = lambda _: None,
    publish: Publish = lambda _: None,
) -> ExportResult:
    """Export a checkpoint of a family into a model repository.

    Args:
        family: what the checkpoint is of.
        options: what to do.
        report: called with one line before each long piece of work.
        publish: called with the name of each placed model; where it raises, nothing stays placed.

    Raises:
        InvalidRequest: the checkpoint, an option or the repository is not as it must be.
        ParityFailed: an output is outside its bounds.
    """
    started = time.monotonic()
    if options.engine is Engine.TENSORRT and not options.check_only:
        raise InvalidRequest(
            "engine tensorrt must be used with --check-only, which verifies the graphs that its parser takes:"
            " building its engines is not part of this release, got an export to place"
        )
    check_precision(options.engine, options.precision)
    opset = choose_opset(options.precision, options.opset, options.engine)
    with open_checkpoint(family, options.checkpoint, options.files) as checkpoint:
        plan = _for_engine(_plan(family, checkpoint, options), options.engine)
        components, authored = _selected(family, plan, options)
        names = _model_names(family, components, authored)
        if not options.force:
            check_replaceable(options.repository, names)
        with staging(options.repository) as staged:
            export = _Export(family, checkpoint, options, opset, staged, report)
            rows = export.build(plan, components)
            check(rows)
            export.finish(components, authored, rows)
            if not options.check_only:
                report(f"placing {len(names)} models in {options.repository}")
                _place(staged, options.repository, names, publish)
    return ExportResult(tuple(rows), tuple(names), not options.check_only, time.monotonic() - started)


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


def _plan(family: Family, checkpoint: Checkpoint, options: ExportOptions) -> Plan:
    axes = axes_of(family, checkpoint, {axis.name: axis for axis in options.axes})
    if options.variant is None:
        return family.plan(checkpoint, axes)
    if options.variant not in family.variants:
        known = ", ".join(family.variants) or f"left out for {family.name}, which has none"
        raise InvalidRequest(f"variant must be {known}, got {options.variant!r}")
    return family.variants[options.variant].plan(checkpoint, axes)


def _for_engine(plan: Plan, engine: Engine) -> Plan:
    """Return the plan with the components that an engine has in place of others."""
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


def _model_names(
    family: Family, components: Sequence[Component], authored: Sequence[AuthoredModel]
) -> list[str]:
    names = [f"{family.name}_{component.name}" for component in components]
    return list(dict.fromkeys([*names, *(model.name for model in authored)]))


@dataclass(frozen=True)
class _Export:
    """The parts of one export that every step of it needs."""

    family: Family
    checkpoint: Checkpoint
    options: ExportOptions
    opset: int
    staged: Path
    report: Report

    def folder(self, component: Component) -> Path:
        return self.staged / f"{self.family.name}_{component.name}" / "1"

    def build(self, plan: Plan, components: Sequence[Component]) -> list[ParityRow]:
        """Export and verify the graphs into the staging folder; return the parity table."""
        rows: list[ParityRow] = []
        for component in components:
            rows += self.build_graph(component)
        for stepped in plan.stepped:
            if stepped.next in components:
                self.report(f"{stepped.next.name}: verifying {stepped.steps} steps as one run")
                rows += verify_stepped(stepped, self.folder(stepped.next), self.options.precision)
        for left in self.staged.rglob("*.widened*"):
            left.unlink()
        return rows

    def build_graph(self, component: Component) -> list[ParityRow]:
        precision = component.precision(self.options.precision)
        folder = self.folder(component)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{component.graph}.onnx"
        kept = "" if precision is self.options.precision else f" (kept in {precision.value})"
        self.report(f"{component.label}: loading and running PyTorch{kept}")
        module = component.load(Precision.FP32)
        reference = compute_reference(component, module)
        if precision is not Precision.FP32 and not precision.is_integer:
            module = component.load(precision)
        self.report(f"{component.label}: exporting")
        traced = path.with_suffix(".float.onnx") if precision.is_integer else path
        export_graph(
            component,
            module,
            traced,
            opset=self.opset,
            engine=self.options.engine,
            simplify=self.options.simplify,
        )
        del module
        gc.collect()
        if precision.is_integer:
            self.quantize(component, traced, path, precision)
        check_operators(path, self.options.engine, component.label)
        self.report(f"{component.label}: verifying")
        return verify(component, path, reference, precision)

    def quantize(self, component: Component, traced: Path, path: Path, precision: Precision) -> None:
        """Make the integer graph from the float one, and remove that."""
        from slipway_export.quantize import quantize

        self.report(f"{component.label}: quantizing to {precision.value}")
        if not quantize(traced, path, precision, component.keep_float):
            raise InvalidRequest(
                f"{component.label}: precision {precision.value} must find matrix products to quantize,"
                " got none"
            )
        for left in (traced, traced.with_name(f"{traced.name}.data")):
            left.unlink(missing_ok=True)

    def finish(
        self, components: Sequence[Component], authored: Sequence[AuthoredModel], rows: Sequence[ParityRow]
    ) -> None:
        """Give each staged model its configuration and its manifest."""
        for model in authored:
            stage_authored(model, self.staged)
        for component in components:
            if component.graph == "model":
                folder = self.folder(component).parent
                config = model_config(component, folder.name, self.options.engine)
                (folder / "config.pbtxt").write_text(config_text(config), encoding="utf-8")
        for name in _model_names(self.family, components, authored):
            parts = [c for c in components if f"{self.family.name}_{c.name}" == name]
            write_manifest(self.staged / name, self.facts(parts, rows))

    def facts(self, parts: Sequence[Component], rows: Sequence[ParityRow]) -> dict[str, Any]:
        """What the manifest says of a model beyond its files."""
        facts: dict[str, Any] = {
            "family": self.family.name,
            "checkpoint": {
                "source": self.checkpoint.source,
                "commit": self.checkpoint.path.name if "snapshots" in self.checkpoint.path.parts else None,
            },
        }
        if self.options.variant is not None:
            facts["variant"] = self.options.variant
        if parts:
            labels = {part.label for part in parts}
            facts |= {
                "engine": self.options.engine.value,
                "precision": {part.graph: part.precision(self.options.precision).value for part in parts},
                "opset": self.opset,
                "simplified": self.options.simplify,
                "axes": {a.name: [a.min, a.opt, a.max] for part in parts for a in part.axes},
                "parity": [asdict(row) for row in rows if row.graph in labels],
            }
        return facts
