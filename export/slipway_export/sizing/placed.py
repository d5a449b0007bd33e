"""Resource needs of the exported models of a repository, computed from their manifests and files.

A manifest names the checkpoint and the axes. If the checkpoint's configurations are still available, its
components are described anew and their work is counted. Otherwise only what follows from the files is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.checkpoint.stored_weights import from_configurations
from slipway_export.engines.choice import TorchChoice
from slipway_export.engines.torch_model import network_files
from slipway_export.families import family_named
from slipway_export.repository.publish import MANIFEST
from slipway_export.run import plan_of
from slipway_export.sizing.estimate import Machine, Need, need_of_file, needs
from slipway_export.sizing.torch_needs import torch_need
from slipway_export.spec import Axis, Component, Engine, Precision
from slipway_serving.protocol.errors import InvalidRequest

_AXES = "planned_axes"


@dataclass(frozen=True)
class Placed:
    """Resource needs of placed graphs.

    Args:
        needs: Needs, one for each graph.
        unknown: Reasons why the work of some graphs is not known, one line each.
    """

    needs: tuple[Need, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Model:
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


def placed_needs(models: Sequence[Model], machine: Machine, checkpoint: str | None = None) -> Placed:
    """Compute the needs of the exported graphs of models.

    Args:
        models: Models from :func:`exported_models`.
        machine: Machine that serves them.
        checkpoint: Place of the configurations now, if it is not the one in the manifests.
    """
    found: list[Need] = []
    unknown: list[str] = []
    for model in models:
        try:
            found += _counted(model, machine, checkpoint)
        except InvalidRequest as error:
            fix = "--checkpoint" if _AXES in model.facts else "to export it anew"
            unknown.append(f"{model.folder.name}: its work is not known: {error}; try {fix}")
            found += [
                replace(
                    need_of_file(model.label(graph), precision, model.bytes(graph)),
                    model=model.folder.name,
                )
                for graph, precision in model.precisions.items()
            ]
    return Placed(tuple(found), tuple(unknown))


def _counted(model: Model, machine: Machine, checkpoint: str | None) -> list[Need]:
    """Describe a model's graphs anew and count their work.

    Raises:
        InvalidRequest: The configurations are missing, or no longer those that the model was made of.
    """
    family = family_named(model.facts["family"]).variant(model.facts.get("variant"))
    source = model.facts["checkpoint"]
    if _AXES not in model.facts:
        raise InvalidRequest(
            f"{model.folder.name}/{MANIFEST} must say its {_AXES}, got that of an earlier release"
        )
    axes = tuple(Axis(name, *sizes) for name, sizes in model.facts[_AXES].items())
    places = {name: place["source"] for name, place in source.get("parts", {}).items()}
    place = checkpoint or source["source"]
    with from_configurations(), open_checkpoint(family, place, {} if checkpoint else places) as opened:
        plan = plan_of(family, opened, model.facts.get("variant"), axes, Engine(model.facts["engine"]))
        made = {
            component.graph: component
            for component in plan.components
            if f"{family.name}_{component.name}" == model.folder.name
        }
        if missing := sorted(model.precisions.keys() - made.keys()):
            raise InvalidRequest(
                f"checkpoint {place} must be one of {model.folder.name}, got none of its graphs"
                f" {', '.join(missing)}"
            )
        return [
            replace(need, disk_bytes=model.bytes(graph), model=model.folder.name)
            for graph, precision in model.precisions.items()
            for need in _needs(model, made[graph], precision, machine)
        ]


def _needs(model: Model, component: Component, precision: Precision, machine: Machine) -> list[Need]:
    if (facts := model.facts.get("torch")) is None:
        return needs(component, machine, [precision])
    return [torch_need(component, TorchChoice.from_facts(facts[component.graph], component), machine)]


def exported_models(repository: Path) -> list[Model]:
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
                models.append(Model(manifest.parent, facts))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidRequest(f"repository {repository}: {manifest} must be JSON, got {error}") from None
    if not models:
        raise InvalidRequest(
            f"repository must hold models that slipway exported, got none in {repository};"
            " try `slipway export`"
        )
    return models
