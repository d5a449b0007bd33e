"""Size of a stopped video's state, for the pipelines of a repository.

Latents, the history of the scheduler and what is carried from section to section follow from the facts that
the export placed beside the pipeline. A first-block cache keeps the inputs of the last step that the denoiser
computed in full, for each guidance branch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipway_export.families import families
from slipway_export.repository.publish import MANIFEST
from slipway_export.sizing.placed import ExportedModel, described
from slipway_export.spec import BATCH, Component, Family, TensorSpec
from slipway_serving.protocol.axis_expressions import Point
from slipway_serving.protocol.errors import InvalidRequest

_FACTS = "pipeline.json"
_VERSION = "1"
# The graph of a denoiser with a first-block cache that takes the inputs of the whole network.
_CACHED_GRAPH = "head"


@dataclass(frozen=True)
class StateEstimate:
    """Size of a stopped video's state at the usual size of a video, without the request's own picture.

    Attributes:
        model: Name of the pipeline.
        latents: Shape of the latents, of one section.
        latents_bytes: Size of the latents.
        latents_kept: Number of arrays of that size: the latents and what the scheduler keeps.
        carried_bytes: Size of what is carried from section to section.
        cache_bytes: Size of what a first-block cache adds; 0 without one, None if it is unknown.
    """

    model: str
    latents: tuple[int, ...]
    latents_bytes: int
    latents_kept: int
    carried_bytes: int
    cache_bytes: int | None

    @property
    def state_bytes(self) -> int:
        """Size of a state without a first-block cache."""
        return self.latents_bytes * self.latents_kept + self.carried_bytes


def estimate_states(
    repository: Path, models: Sequence[ExportedModel], checkpoint: str | None = None
) -> list[StateEstimate]:
    """Estimate the sizes of the states of a repository's pipelines.

    Args:
        repository: Repository of exported models.
        models: Models of the repository that have graphs.
        checkpoint: Preset, folder or hub id of the configurations, if it is not the one in the manifests.
    """
    return [
        _estimate(
            pipeline, family, [each for each in models if each.facts["family"] == family.name], checkpoint
        )
        for family in families()
        if family.state_size is not None
        for pipeline in sorted(repository.glob(f"*/{_VERSION}/{_FACTS}"))
        if _family_of(pipeline) == family.name
    ]


def _estimate(
    pipeline: Path, family: Family, models: Sequence[ExportedModel], checkpoint: str | None
) -> StateEstimate:
    assert family.state_size is not None
    size = family.state_size(pipeline.parent)
    return StateEstimate(
        pipeline.parents[1].name,
        size.latents,
        size.latents_bytes,
        size.latents_kept,
        size.carried_bytes,
        _cache_bytes(models, checkpoint),
    )


def _cache_bytes(models: Sequence[ExportedModel], checkpoint: str | None) -> int | None:
    """Return the bytes that the first-block cache of a pipeline's denoisers adds, or None if unknown."""
    found = [0]
    for model in models:
        if _CACHED_GRAPH not in model.precisions:
            continue
        try:
            with described(model, checkpoint) as by_graph:
                found.append(inputs_bytes(by_graph[_CACHED_GRAPH]))
        except InvalidRequest:
            return None
    # A cache is of one denoiser at a time.
    return max(found)


def inputs_bytes(component: Component) -> int:
    """Return the bytes of a denoiser's inputs for all guidance branches of one step.

    The latents are the same in each branch, and a state contains them once.

    Args:
        component: Graph that takes the inputs of the denoiser, at its usual size.
    """
    point = {**component.points()["opt"], BATCH: 1}
    branches = (component.rows or (1, 1))[1]
    latents, *others = (_bytes(tensor, point) for tensor in component.inputs)
    return latents + branches * sum(others)


def _bytes(tensor: TensorSpec, point: Point) -> int:
    return math.prod(tensor.at(point)) * np.dtype(tensor.dtype.value).itemsize


def _family_of(pipeline: Path) -> str | None:
    """Return the name of a pipeline's family from its manifest, or None."""
    try:
        manifest = json.loads((pipeline.parents[1] / MANIFEST).read_text(encoding="utf-8"))
        return str(manifest["family"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
