"""Verification of placed models at more points or on another device; the rows are added to their manifests.

The manifests state the source of each model. The same plan is made again from the same checkpoint, and its
graphs are compared as in an export. Only the manifest of a model changes, and in its configuration the
summary of the rows, which a server tells when it loads the model again.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.checkpoint.lora.requests import recorded_additions
from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.choice import TorchChoice
from slipway_export.engines.device import Device
from slipway_export.engines.torch_model import run_in_process, runtime_name, verify_steps_in_process
from slipway_export.families import family_named
from slipway_export.progress import format_duration
from slipway_export.repository.publish import MANIFEST, find_modification
from slipway_export.repository.staged_export import select_stepped
from slipway_export.repository.staging import staging
from slipway_export.repository.told_facts import with_parity
from slipway_export.run import plan_of
from slipway_export.sizing.budget import estimate
from slipway_export.sizing.machine import check_device
from slipway_export.spec import Axis, Component, Engine, Plan, Precision, Stepped
from slipway_export.verification.comparison import (
    ParityRow,
    check_parity,
    compute_reference,
    load_reference,
    parity_rows,
    verify,
)
from slipway_export.verification.steps import verify_stepped
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import InvalidRequest

Report = Callable[[str], None]

CONFIG = "config.pbtxt"
"""File with the summary of the parity report."""
STEPS = "steps"
"""Name of the point that stands for a stepped network's steps as one run."""
POINTS = ("min", "opt", "max", "unseen", STEPS)


@dataclass(frozen=True)
class PlacedModel:
    """Placed model that was exported from a checkpoint.

    Args:
        folder: Folder of the model.
        manifest: Content of its manifest.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def origin(self) -> str:
        """Facts that models of one plan have in common, as a text for comparison."""
        names = ("family", "variant", "engine", "checkpoint", "planned_axes")
        return json.dumps({name: self.manifest.get(name) for name in names}, sort_keys=True)

    def path(self, component: Component) -> Path:
        """Return the path of the graph of one of the model's components."""
        return self.folder / "1" / f"{component.graph}.onnx"

    def precision(self, component: Component) -> Precision:
        """Return the precision of the graph of one of the model's components."""
        return Precision(self.manifest["precision"][component.graph])

    def points_to_verify(self, component: Component, points: Sequence[str]) -> list[str]:
        """Return the points to verify a graph at: the requested ones, or those that the export left out."""
        left = [left["point"] for left in self.manifest["not_verified"] if left["graph"] == component.label]
        return [name for name in POINTS if name in (points or left)]


def verify_placed(
    repository: Path,
    *,
    source: str | None = None,
    parts: Mapping[str, str] | None = None,
    components: Sequence[str] = (),
    points: Sequence[str] = (),
    device: Device = Device.CPU,
    report: Report = lambda _: None,
) -> list[ParityRow]:
    """Verify the graphs of a repository against PyTorch and add the rows to the manifests.

    Args:
        repository: Repository with models that were placed by an export.
        source: Preset, folder or hub id of their checkpoint; the source in the manifests when None.
        parts: Folder or hub id of each of its parts, by name; those in the manifests when None.
        components: Names of the components to verify; all when empty.
        points: Points of :data:`POINTS`; those that the exports left out when empty.
        device: Device that both sides run on.
        report: Callback that receives one line before each long piece of work.

    Returns:
        The new rows; none if nothing was left out.

    Raises:
        InvalidRequest: An argument, a manifest or the checkpoint is invalid, or a file was changed.
        ParityFailed: An output is outside its bounds; the manifests are unchanged.
    """
    check_device(device)
    if unknown := [name for name in points if name not in POINTS]:
        raise InvalidRequest(f"points must be some of {', '.join(POINTS)}, got {', '.join(unknown)}")
    models = _models(repository)
    groups: dict[str, list[PlacedModel]] = {}
    for model in models:
        groups.setdefault(model.origin, []).append(model)
    known: set[str] = set()
    rows: list[ParityRow] = []
    with staging(repository) as scratch:
        for group in groups.values():
            manifest = group[0].manifest
            family = family_named(manifest["family"]).variant(manifest.get("variant"))
            recorded = {
                name: part["source"] for name, part in manifest["checkpoint"].get("parts", {}).items()
            }
            checkpoint_source = source or manifest["checkpoint"]["source"]
            with open_checkpoint(
                family,
                checkpoint_source,
                recorded if parts is None else parts,
                requested=recorded_additions(manifest["checkpoint"]),
                variant_file=manifest["checkpoint"].get("variant_file", ""),
            ) as checkpoint:
                exported = _Group(checkpoint, _plan(checkpoint, manifest), group, device, scratch, report)
                known |= {component.name for component in exported.components}
                rows += exported.verify(components, points)
    if unknown := sorted(set(components) - known):
        raise InvalidRequest(f"component must be one of {', '.join(sorted(known))}, got {', '.join(unknown)}")
    return rows


def _models(repository: Path) -> list[PlacedModel]:
    """Read the manifests of the models that were exported."""
    found = []
    for path in sorted(repository.glob(f"*/{MANIFEST}")):
        if reason := find_modification(path.parent):
            raise InvalidRequest(
                f"repository {repository}: model {path.parent.name} must be unchanged since its export"
                f" to be verified, got {reason}"
            )
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if "parity" not in manifest:
            continue
        if "planned_axes" not in manifest:
            raise InvalidRequest(
                f"repository {repository}: {path.parent.name}/{MANIFEST} must contain planned_axes to be"
                " verified, got a manifest of an earlier release; try to export it again"
            )
        found.append(PlacedModel(path.parent, manifest))
    if not found:
        raise InvalidRequest(
            f"repository must contain models that slipway exported, got none in {repository}"
        )
    return found


def _plan(checkpoint: Checkpoint, manifest: Mapping[str, Any]) -> Plan:
    axes = tuple(Axis(name, *sizes) for name, sizes in manifest["planned_axes"].items())
    family = family_named(manifest["family"])
    return plan_of(family, checkpoint, manifest.get("variant"), axes, Engine(manifest["engine"]))


@dataclass(frozen=True)
class _Group:
    """Models that were made from one plan of one checkpoint."""

    checkpoint: Checkpoint
    plan: Plan
    models: Sequence[PlacedModel]
    device: Device
    scratch: Path
    report: Report

    @property
    def components(self) -> list[Component]:
        """Components of the plan that are placed."""
        return [component for component in self.plan.components if self._model(component) is not None]

    def _model(self, component: Component) -> PlacedModel | None:
        family = self.models[0].manifest["family"]
        names = {model.folder.name: model for model in self.models}
        model = names.get(f"{family}_{component.name}")
        return model if model is not None and component.graph in model.manifest["precision"] else None

    def verify(self, names: Sequence[str], points: Sequence[str]) -> list[ParityRow]:
        """Verify some components at some points and add the rows to their manifests."""
        chosen = [c for c in self.components if not names or c.name in names]
        names_by_label = {c.label: self._placed(c).points_to_verify(c, points) for c in chosen}
        runs = [run for run in select_stepped(self.plan, chosen) if STEPS in names_by_label[run.next.label]]
        at = {
            c.label: {name: c.points()[name] for name in names_by_label[c.label] if name != STEPS}
            for c in chosen
        }
        chosen = [c for c in chosen if at[c.label]]
        if chosen or runs:
            takes = format_duration(estimate(chosen, at, runs, self.device))
            self.report(f"verification: about {takes} on the {self.device.value} here")
        rows: list[ParityRow] = []
        for component in chosen:
            rows += self._graph(component, at[component.label])
        for run in runs:
            self.report(f"{run.next.label}: verifying {run.steps} steps as one run")
            rows += self._steps(run)
        check_parity(rows)
        for model in self.models:
            _add_rows(model, rows)
        return rows

    def _steps(self, run: Stepped) -> list[ParityRow]:
        graphs = [graph for graph in (run.first, run.next) if graph is not None]
        model = self._placed(run.next)
        choices = {graph.label: _choice(model, graph) for graph in graphs}
        torch_choices = {label: choice for label, choice in choices.items() if choice is not None}
        if torch_choices:
            return verify_steps_in_process(run, model.folder, torch_choices, None, self.device)
        paths = {graph.label: self._placed(graph).path(graph) for graph in graphs}
        return verify_stepped(run, paths, model.precision(run.next), None, self.device, self.scratch)

    def _placed(self, component: Component) -> PlacedModel:
        model = self._model(component)
        assert model is not None  # Callers pass only components that are placed.
        return model

    def _graph(self, component: Component, points: Mapping[str, Point]) -> list[ParityRow]:
        """Verify the graph of a component at some points."""
        model = self._placed(component)
        self.report(f"{component.label}: running PyTorch at {', '.join(points)}")
        reference = compute_reference(component, load_reference(component, self.device), points, self.device)
        gc.collect()
        self.report(f"{component.label}: verifying at {', '.join(points)}")
        if (choice := _choice(model, component)) is not None:
            bound, on = choice.tolerance(component), runtime_name(choice, self.device)
            with run_in_process(model.folder, self.device, component.graph) as run:
                return parity_rows(component, run, reference, on, lambda _: bound)
        precision = model.precision(component)
        return verify(component, model.path(component), reference, precision, self.device, self.scratch)


def _choice(model: PlacedModel, component: Component) -> TorchChoice | None:
    """Return how PyTorch serves a component; None if it does not."""
    torch = model.manifest.get("torch")
    return None if torch is None else TorchChoice.from_facts(torch[component.graph], component)


def _add_rows(model: PlacedModel, rows: Iterable[ParityRow]) -> None:
    """Add rows to a model's manifest; they replace rows of the same output, point and runtime."""
    labels = {row["graph"] for row in model.manifest["parity"]}
    new = [asdict(row) for row in rows if row.graph in labels]
    if not new:
        return
    keys = {_row_key(row) for row in new}
    points = {(row["graph"], _point_name(row["point"])) for row in new}
    manifest = {
        **model.manifest,
        "parity": [row for row in model.manifest["parity"] if _row_key(row) not in keys] + new,
        "not_verified": [
            left for left in model.manifest["not_verified"] if (left["graph"], left["point"]) not in points
        ],
    }
    config = model.folder / CONFIG
    text = with_parity(config.read_text("utf-8"), manifest["parity"], len(manifest["not_verified"]))
    digest = hashlib.sha256(text.encode()).hexdigest()
    manifest["files"] = {**model.manifest["files"], CONFIG: digest}
    texts = {CONFIG: text, MANIFEST: json.dumps(manifest, indent=2, allow_nan=False) + "\n"}
    written = {name: model.folder / f".{name}.new" for name in texts}
    for name, path in written.items():
        path.write_text(texts[name], encoding="utf-8")
    for name, path in written.items():
        path.replace(model.folder / name)


def _row_key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["graph"], row["output"], row["point"], row["verified_on"]


def _point_name(point: str) -> str:
    """Return the name of a row's point; for the steps of a run, their common name."""
    name = point.split(" (", maxsplit=1)[0]
    return STEPS if name.startswith("step ") else name
