"""An export in progress: its models are made one by one in a staging folder, and each is verified at once.

Data flow: component -> its graph, or the files of the network that PyTorch runs -> comparison with the
checkpoint's own network -> configuration and manifest. Graphs identical to earlier ones are reused
(`resume.py`). `run.py` selects the components, checks the options and places the result.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.layouts.chosen_files import layouts_of
from slipway_export.checkpoint.lora.adapters import Lora
from slipway_export.engines.decisions import Decisions
from slipway_export.engines.providers import Provider
from slipway_export.engines.tensorrt.choice import EngineChoice
from slipway_export.engines.tensorrt.report import BuildReport
from slipway_export.engines.tensorrt.staged_engine import (
    engine_files,
    stage_engine,
    stage_engine_model,
    stage_plan_model,
)
from slipway_export.engines.torch_model import (
    network_files,
    run_in_process,
    runtime_name,
    stage_graph,
    stage_model,
    stage_network,
    verify_steps_in_process,
)
from slipway_export.engines.torch_network import NetworkFacts
from slipway_export.graph.calibration import largest_inputs
from slipway_export.graph.dialect import check_operators
from slipway_export.graph.onnx import export_graph
from slipway_export.options import ExportOptions
from slipway_export.progress import Progress, format_bytes, format_duration
from slipway_export.repository.accelerators import (
    accelerator,
    cache_prefix,
    check_profile,
    set_accelerator,
)
from slipway_export.repository.config import config_text, model_config, write_axes
from slipway_export.repository.export_source import ExportSource
from slipway_export.repository.placement import set_instances, stage_remote
from slipway_export.repository.publish import stage_authored, write_manifest
from slipway_export.repository.resume import FinishedGraphs, graph_files
from slipway_export.repository.told_facts import write_facts
from slipway_export.sizing.budget import Verification
from slipway_export.sizing.threads import graph_threads
from slipway_export.spec import (
    AuthoredModel,
    Component,
    Engine,
    Family,
    Loading,
    Plan,
    Precision,
    Stepped,
)
from slipway_export.verification.comparison import (
    ParityRow,
    Reference,
    compute_reference,
    load_reference,
    parity_rows,
    verify,
)
from slipway_export.verification.steps import verify_stepped
from slipway_serving.runtime.torch_engine.network_description import MODEL, network_file


def select_stepped(plan: Plan, components: Sequence[Component]) -> list[Stepped]:
    """Return the stepped networks whose graphs are all among some components."""
    labels = {component.label for component in components}
    return [
        run for run in plan.stepped if {graph.label for graph in (run.first, run.next) if graph} <= labels
    ]


def served_model_names(
    family: Family, components: Sequence[Component], authored: Sequence[AuthoredModel]
) -> list[str]:
    """Return the names of the models made of components and authored models, each once."""
    names = [f"{family.name}_{component.name}" for component in components]
    return list(dict.fromkeys([*names, *(model.name for model in authored)]))


@dataclass(frozen=True)
class StagedExport:
    """The parts of one export that all of its steps need.

    Args:
        source: Source of the export.
        opset: ONNX operator set version.
        verification: Points at which graphs and networks are verified.
        staged: Folder to write in.
        report: Progress that receives a line before each long piece of work.
        finished: Finished graphs, which are not exported again.
        graph: File of the graph in an export of a single graph.
        sharing: Names of the components whose several graphs share one file of weights.
        decisions: Decisions about what serves each component.
        engines: Reports of the engines that were built so far, by label; those of reused graphs are missing.
    """

    source: ExportSource
    opset: int
    verification: Verification
    staged: Path
    report: Progress
    finished: FinishedGraphs
    graph: Path | None = None
    sharing: frozenset[str] = frozenset()
    decisions: Decisions = field(default_factory=Decisions)
    engines: dict[str, BuildReport] = field(default_factory=dict)

    @property
    def options(self) -> ExportOptions:
        """Options from the user."""
        return self.source.options

    @property
    def _family(self) -> Family:
        return self.source.family

    @property
    def _checkpoint(self) -> Checkpoint:
        return self.source.checkpoint

    def _folder(self, component: Component) -> Path:
        return self.staged / f"{self._family.name}_{component.name}" / "1"

    def _path(self, component: Component) -> Path:
        if component.label in self.decisions.torch:
            return self._folder(component) / network_file(component.graph)
        return self.graph or self._folder(component) / f"{component.graph}.onnx"

    def build(self, plan: Plan, components: Sequence[Component]) -> list[ParityRow]:
        """Export and verify the graphs into the staging folder, or reuse them; return the parity table."""
        rows: list[ParityRow] = []
        left_out = self.verification.left_out
        for component in components:
            self.report.begin(component.label)
            path, files = self._path(component), None
            if component.label in self.decisions.torch:
                make, files = (
                    partial(self._build_torch, component),
                    partial(network_files, path.parent, component.graph),
                )
            else:
                make = partial(self._build_graph, component)
                if component.label in self.decisions.engines:
                    choice = self.decisions.engines[component.label]
                    files = partial(_graph_and_engine, path, choice)
            rows += self.finished.graph(component, path, make, left_out, files)
            if self.decisions.providers.get(component.name) is Provider.TENSORRT:
                check_profile(component, path)
        for run in select_stepped(plan, components):
            rows += self.finished.steps(run, partial(self._verify_steps, run), left_out)
        for left in self.staged.rglob("*.widened*"):
            left.unlink()
        return rows

    def _verify_steps(self, run: Stepped) -> list[ParityRow]:
        self.report(f"{run.next.label}: verifying {run.steps} steps as one run")
        paths = {graph.label: self._path(graph) for graph in (run.first, run.next) if graph is not None}
        point, device = self.verification.steps[run.next.label], self.options.verify_device
        if run.next.label in self.decisions.torch:
            return verify_steps_in_process(
                run, self._folder(run.next).parent, self.decisions.torch, point, device
            )
        return verify_stepped(run, paths, self.options.requested_precision(run.next), point, device)

    def _build_graph(self, component: Component) -> list[ParityRow]:
        """Export a component to its graph and verify the graph."""
        precision = component.precision(self.options.requested_precision(component))
        path = self._path(component)
        path.parent.mkdir(parents=True, exist_ok=True)
        note = (
            ""
            if precision is self.options.requested_precision(component)
            else f" (kept in {precision.value})"
        )
        self.report(f"{component.label}: exporting{note}")
        largest = self._calibrated(component, precision)
        module = component.load(component.loaded_in(precision), Loading.ON_DISK)
        export_graph(
            component,
            module,
            path,
            opset=self.opset,
            precision=precision,
            engine=self.options.engine_of(component),
            simplify=self.options.simplify,
            shares=component.name in self.sharing,
            report=self.report,
            largest_inputs=largest,
        )
        del module
        gc.collect()
        check_operators(path, self.options.engine_of(component), component.label)
        reference = self._reference(component)
        self.report(f"{component.label}: verifying")
        rows = verify(component, path, reference, precision, self.options.verify_device)
        if not any(row.failures for row in rows):
            self._build_engine(component, path)
        return rows

    def _build_engine(self, component: Component, graph: Path) -> None:
        """Build the engine of a verified graph, if TensorRT serves the component."""
        choice = self.decisions.engines.get(component.label)
        if choice is None:
            if self.options.engine_of(component).is_tensorrt:
                self.report(f"{component.label}: not parsed, because no TensorRT library is installed")
            return
        self.report(f"{component.label}: building the engine with {choice.text}")
        report = self.engines[component.label] = stage_engine(component, choice, graph)
        self.report(
            f"{component.label}: built in {format_duration(report.build_s)},"
            f" {format_bytes(report.engine_bytes)}, {report.fused_attention} fused attention kernels"
        )

    def _calibrated(self, component: Component, precision: Precision) -> dict[str, float] | None:
        """Return the largest inputs of a component's linear layers if its graph has static scales."""
        static = precision in (Precision.INT8, Precision.FP8) and set(component.outliers) != {"*"}
        if not static or not self.options.engine_of(component).is_tensorrt:
            return None
        self.report(f"{component.label}: calibrating the scales of activations")
        points, device = self.verification.points[component.label], self.options.verify_device
        largest = largest_inputs(component, load_reference(component, device), points, device)
        gc.collect()
        return largest

    def _build_torch(self, component: Component) -> list[ParityRow]:
        """Place the files that PyTorch loads for a component, and verify the served program on them."""
        choice, folder = self.decisions.torch[component.label], self._folder(component)
        note = f" (kept in {choice.options.summary})" if choice.differs else ""
        self.report(f"{component.label}: placing the files that PyTorch loads{note}")
        folder.mkdir(parents=True, exist_ok=True)
        if component.graph == MODEL:
            stage_model(component, folder.parent.name, choice, self.staged)
        else:
            stage_graph(component, choice, folder)
        axes = {a.name: (a.min, a.opt, a.max) for a in self.source.axes}
        # A plan may derive names from the checkpoint's path, so they must not depend on a server's directory.
        source = self._checkpoint.source
        source = str(Path(source).resolve()) if Path(source).is_dir() else source
        facts = NetworkFacts(self._family.name, self.options.variant, component.label, source, axes)
        stage_network(component, facts, self._checkpoint, self.source.planned, folder)
        reference = self._reference(component)
        self.report(f"{component.label}: loading and verifying the served program ({choice.options.summary})")
        device, bound = self.options.verify_device, choice.tolerance(component)
        with run_in_process(folder.parent, device, component.graph) as run:
            return parity_rows(component, run, reference, runtime_name(choice, device), lambda _: bound)

    def _reference(self, component: Component) -> Reference:
        self.report(f"{component.label}: running PyTorch")
        points, device = self.verification.points[component.label], self.options.verify_device
        reference = compute_reference(component, load_reference(component, device), points, device)
        gc.collect()
        return reference

    def finish(
        self, components: Sequence[Component], authored: Sequence[AuthoredModel], rows: Sequence[ParityRow]
    ) -> None:
        """Write the configuration and the manifest of each staged model."""
        for model in authored:
            stage_authored(model, self.staged)
        for component in components:
            placement = self.options.placements.get(component.name)
            folder = self._folder(component).parent
            if placement is not None and placement.server:
                stage_remote(component, folder.name, placement, self.staged)
                continue
            if component.label in self.decisions.torch and component.graph == MODEL:
                stage_model(component, folder.name, self.decisions.torch[component.label], self.staged)
            elif component.graph == MODEL and component.label in self.decisions.engines:
                self._stage_engine_config(component, folder)
            elif component.graph == MODEL:
                engine = self.options.engine_of(component)
                threads = graph_threads(component) if engine.backend == "onnxruntime" else None
                config = model_config(component, folder.name, engine, threads)
                (folder / "config.pbtxt").write_text(config_text(config), encoding="utf-8")
            if placement is not None:
                set_instances(folder / "config.pbtxt", placement)
            if component.name in self.decisions.providers:
                self._set_provider(component, folder)
        for name in served_model_names(self._family, components, authored):
            self.options.queues.write(self.staged / name / "config.pbtxt")
            parts = [c for c in components if f"{self._family.name}_{c.name}" == name]
            placement = self.options.placements.get(parts[0].name) if parts else None
            placement_facts: dict[str, Any] = {} if placement is None else {"place": placement.facts}
            if parts and parts[0].name in self.decisions.providers:
                placement_facts["provider"] = self.decisions.providers[parts[0].name].value
            local = [] if placement is not None and placement.server else parts
            if local and any(part.graph != MODEL for part in local):
                write_axes(self.staged / name / "config.pbtxt", local)
            facts = self.facts(local, rows)
            if local:
                write_facts(self.staged / name / "config.pbtxt", facts)
            write_manifest(self.staged / name, facts | placement_facts, self.source.digests.of)

    def _stage_engine_config(self, component: Component, folder: Path) -> None:
        """Write the configuration of a model that runs an engine; without an engine that of its graph."""
        choice = self.decisions.engines[component.label]
        if self.options.engine_of(component) is Engine.TENSORRT_RTX:
            stage_engine_model(component, folder.name, self.staged)
        elif choice.placed:
            stage_plan_model(component, choice, folder)
        else:  # Another library may have checked the graph.
            config = model_config(component, folder.name, Engine.TENSORRT)
            (folder / "config.pbtxt").write_text(config_text(config), encoding="utf-8")

    def _set_provider(self, component: Component, folder: Path) -> None:
        """Write the provider that runs a component's graph into the model's configuration."""
        precision = component.precision(self.options.requested_precision(component))
        prefix = cache_prefix(folder.name, self.source.digests.of(self._folder(component)))
        entry = accelerator(component, self.decisions.providers[component.name], precision, prefix)
        set_accelerator(folder / "config.pbtxt", entry)

    def facts(self, parts: Sequence[Component], rows: Sequence[ParityRow]) -> dict[str, Any]:
        """Return the manifest's facts about a model, except for its files."""
        source: dict[str, Any] = {"source": self._checkpoint.source, "commit": self._checkpoint.commit}
        if self._checkpoint.part_locations:
            source["parts"] = {
                name: {"source": location.source, "commit": location.commit}
                for name, location in self._checkpoint.part_locations.items()
            }
        if layouts := layouts_of(self._checkpoint, [part.name for part in self._family.parts]):
            source["layouts"] = layouts
        if self._checkpoint.variant_file:
            source["variant_file"] = self._checkpoint.variant_file
        if loras := self._checkpoint.additions.loras:
            source["loras"] = [self._lora_facts(lora) for lora in loras]
        planned = self.source.axes
        facts: dict[str, Any] = {
            "family": self._family.name,
            "checkpoint": source,
            "planned_axes": {axis.name: [axis.min, axis.opt, axis.max] for axis in planned},
        }
        if self.options.variant is not None:
            facts["variant"] = self.options.variant
        if parts:
            labels = {part.label for part in parts}
            facts |= {
                "engine": self.options.engine_of(parts[0]).value,
                "precision": {
                    part.graph: part.precision(self.options.requested_precision(part)).value for part in parts
                },
                **self._facts_of_engine(parts),
                "axes": {a.name: [a.min, a.opt, a.max] for part in parts for a in part.axes},
                "parity": [asdict(row) for row in rows if row.graph in labels],
                "not_verified": [asdict(left) for left in self.finished.left_out if left.graph in labels],
                "made": self.finished.facts(parts),
            }
            loras = self._checkpoint.additions.loras
            if own := [self._lora_facts(lora) for lora in loras if lora.component == parts[0].name]:
                facts["loras"] = own
        return facts

    def _lora_facts(self, lora: Lora) -> dict[str, Any]:
        return {
            "component": lora.component,
            "source": lora.source,
            "scale": lora.scale,
            "commit": lora.commit,
            "sha256": self.source.digests.of(lora.path),
        }

    def _facts_of_engine(self, parts: Sequence[Component]) -> dict[str, Any]:
        choices = {
            part.graph: self.decisions.torch[part.label]
            for part in parts
            if part.label in self.decisions.torch
        }
        if not choices:
            return {"opset": self.opset, "simplified": self.options.simplify, **self._engine_facts(parts)}
        return {
            "precision": {graph: choice.options.load_precision for graph, choice in choices.items()},
            "torch": {graph: choice.facts for graph, choice in choices.items()},
        }

    def _engine_facts(self, parts: Sequence[Component]) -> dict[str, Any]:
        """Return the manifest's entry about the engines of a model's graphs."""
        chosen = {
            part.graph: self.decisions.engines[part.label]
            for part in parts
            if part.label in self.decisions.engines
        }
        if not chosen:
            return {}
        return {
            "engines": {
                graph: {
                    "library": choice.library.value,
                    "version": choice.version,
                    "targets": list(choice.targets),
                    "profiles": choice.profiles.value,
                    "options": choice.options.facts,
                }
                for graph, choice in chosen.items()
            }
        }


def _graph_and_engine(graph: Path, choice: EngineChoice) -> list[Path]:
    return [*graph_files(graph), *engine_files(graph, choice)]
