"""Estimated resources of the exported models of a repository, from their manifests and files.

A manifest names the checkpoint and the axes. If the checkpoint's configurations are still available, its
components are described anew and their work is counted. Otherwise only what follows from the files is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.engines.choice import TorchChoice
from slipway_export.engines.torch_model import network_files
from slipway_export.families import family_named
from slipway_export.repository.publish import MANIFEST
from slipway_export.run import plan_of
from slipway_export.sizing.estimate import Machine, ResourceEstimate, estimate_component, estimate_from_size
from slipway_export.sizing.torch_needs import estimate_torch
from slipway_export.spec import Axis, Component, Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest

_AXES = "planned_axes"


@dataclass(frozen=True)
class PlacedEstimates:
    """Estimated resources of placed graphs.

    Args:
        estimates: Estimates, one for each graph.
        unknown: Reasons why the work of some graphs is not known, one line each.
    """

    estimates: tuple[ResourceEstimate, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class ExportedModel:
    """Folder of a model with graphs, and its manifest."""

    folder: Path
    facts: Mapping[str, Any]

    @property
    def precisions(self) -> dict[str, Precision]:
        """Precisions of the graphs, by file stem."""
        return {graph: Precision(precision) for graph, precision in self.facts["precision"].items()}

    def label(self, graph: str) -> str:
        """Return the name of a graph in reports."""
        name = self.folder.name.removeprefix(f"{self.facts['family']}_")
        return name if graph == "model" else f"{name}/{graph}"

    def bytes(self, graph: str) -> int:
        """Return the size of a graph's files, or of the files that PyTorch loads, in bytes."""
        if "torch" in self.facts:
            return sum(path.stat().st_size for path in network_files(self.folder / "1", graph))
        files = (self.folder / "1").glob(f"{graph}.onnx*")
        return sum(path.stat().st_size for path in files)


def estimate_placed(
    models: Sequence[ExportedModel], machine: Machine, checkpoint: str | None = None
) -> PlacedEstimates:
    """Estimate the resources of the exported graphs of models.

    Args:
        models: Models from :func:`exported_models`.
        machine: Machine that serves them.
        checkpoint: Preset, folder or hub id of the configurations, if it is not the one in the manifests.
    """
    found: list[ResourceEstimate] = []
    unknown: list[str] = []
    for model in models:
        try:
            found += _estimate_model(model, machine, checkpoint)
        except InvalidRequest as error:
            fix = "--checkpoint" if _AXES in model.facts else "to export it again"
            unknown.append(
                f"{model.folder.name}: compute time and activations are unknown, because {error}; try {fix}"
            )
            found += [
                replace(
                    estimate_from_size(model.label(graph), precision, model.bytes(graph)),
                    model=model.folder.name,
                )
                for graph, precision in model.precisions.items()
            ]
    return PlacedEstimates(tuple(found), tuple(unknown))


def _estimate_model(model: ExportedModel, machine: Machine, checkpoint: str | None) -> list[ResourceEstimate]:
    """Describe a model's graphs again and count their operations.

    Raises:
        InvalidRequest: See :func:`described`.
    """
    with described(model, checkpoint) as by_graph:
        return [
            replace(need, disk_bytes=model.bytes(graph), model=model.folder.name)
            for graph, precision in model.precisions.items()
            for need in _estimate_graph(model, by_graph[graph], precision, machine)
        ]


@contextmanager
def described(model: ExportedModel, checkpoint: str | None = None) -> Iterator[dict[str, Component]]:
    """Describe a model's graphs again, from the configurations of its checkpoint.

    Args:
        model: Model from :func:`exported_models`.
        checkpoint: Preset, folder or hub id of the configurations, if it is not the one in the manifest.

    Yields:
        The components by their graphs; their networks can be built while the block runs.

    Raises:
        InvalidRequest: The configurations are missing, or no longer those that the model was made of.
    """
    family = family_named(model.facts["family"]).variant(model.facts.get("variant"))
    source = model.facts["checkpoint"]
    if _AXES not in model.facts:
        raise InvalidRequest(
            f"{model.folder.name}/{MANIFEST} must contain {_AXES}, got a manifest of an earlier release"
        )
    axes = tuple(Axis(name, *sizes) for name, sizes in model.facts[_AXES].items())
    places = {name: place["source"] for name, place in source.get("parts", {}).items()}
    place = checkpoint or source["source"]
    parts = {} if checkpoint else places
    word = "" if checkpoint else source.get("variant_file", "")
    with open_checkpoint(family, place, parts, configurations_only=True, variant_file=word) as opened:
        plan = plan_of(family, opened, model.facts.get("variant"), axes, Engine(model.facts["engine"]))
        by_graph = {
            component.graph: component
            for component in plan.components
            if f"{family.name}_{component.name}" == model.folder.name
        }
        if missing := sorted(model.precisions.keys() - by_graph.keys()):
            raise InvalidRequest(
                f"checkpoint {place} must be the one that {model.folder.name} was exported from, got one"
                f" without its graphs {', '.join(missing)}"
            )
        yield by_graph


def _estimate_graph(
    model: ExportedModel, component: Component, precision: Precision, machine: Machine
) -> list[ResourceEstimate]:
    if (facts := model.facts.get("torch")) is None:
        return estimate_component(component, machine, [precision])
    return [estimate_torch(component, TorchChoice.from_facts(facts[component.graph], component), machine)]


def exported_models(repository: Path) -> list[ExportedModel]:
    """Return the models of a repository that have graphs of an export.

    Raises:
        InvalidRequest: The repository is no folder, or contains no such model.
    """
    if not repository.is_dir():
        raise InvalidRequest(f"repository must be an existing folder, got {repository}")
    models = []
    for manifest in sorted(repository.glob(f"*/{MANIFEST}")):
        try:
            facts = json.loads(manifest.read_text(encoding="utf-8"))
            if "precision" in facts:
                models.append(ExportedModel(manifest.parent, facts))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidRequest(f"repository {repository}: {manifest} must be JSON, got {error}") from None
    if not models:
        raise InvalidRequest(
            f"repository must contain models that slipway exported, got none in {repository};"
            " try `slipway export`"
        )
    return models
