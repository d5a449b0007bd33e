"""Ranges of the axes to export a checkpoint with, from its preset, its family and the user's choices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slipway_export.checkpoint.checkpoint import Checkpoint
from slipway_export.spec import Axis, Family
from slipway_serving.protocol.errors import InvalidRequest, raise_all


def axes_of(
    family: Family,
    checkpoint: Checkpoint,
    chosen: Mapping[str, Axis],
    sizes: Mapping[str, int] | None = None,
) -> tuple[Axis, ...]:
    """Return the ranges to export a checkpoint with.

    The ranges come from the preset with the same configuration as the checkpoint, or else from the family.
    A range that the user chose replaces each of them.

    Args:
        family: Family of the checkpoint.
        checkpoint: Checkpoint whose configuration is read.
        chosen: Ranges that the user chose, by axis.
        sizes: Sizes at which axes are traced, by option of the family; a range extends only as
            far as its size requires.

    Raises:
        InvalidRequest: The user chose an axis or a size that the family does not have, or both for one axis.
    """
    traced = _traced(family, chosen, sizes or {})
    axes = family.axes
    for preset in family.presets.values():
        if all(_agrees(checkpoint, file, config) for file, config in preset.configs.items()):
            axes = preset.axes
    names = {axis.name for axis in axes}
    if unknown := sorted(chosen.keys() - names):
        raise InvalidRequest(f"axis must be one of {', '.join(sorted(names))}, got {', '.join(unknown)}")
    return tuple(
        axis.around(traced[axis.name]) if axis.name in traced else chosen.get(axis.name, axis)
        for axis in axes
    )


def _traced(family: Family, chosen: Mapping[str, Axis], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes at which axes are traced, by axis."""
    problems = [
        f"--{option} must be left out for {family.name}, got {size}; try --axis"
        for option, size in sizes.items()
        if option not in family.sizes
    ]
    problems += [
        f"--{option} must be given without --axis {axis}, got both"
        for option, axis in family.sizes.items()
        if option in sizes and axis in chosen
    ]
    raise_all("export", problems)
    return {family.sizes[option]: size for option, size in sizes.items()}


def _agrees(checkpoint: Checkpoint, file: str, config: Mapping[str, Any]) -> bool:
    if not checkpoint.has(file):
        return False
    stored = checkpoint.config(file)
    # The JSON round trip turns tuples of the preset into lists, as they are in the file.
    return all(stored.get(key) == json.loads(json.dumps(value)) for key, value in config.items())
