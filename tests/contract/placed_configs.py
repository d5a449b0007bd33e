"""The configurations of all components of all families, from their descriptions: no graph is exported."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import BUILT_IN
from slipway_export.repository.config import model_config
from slipway_export.spec import Component, Engine


@dataclass(frozen=True)
class NetworkDescription:
    """Components of every family and variant at its tiny preset, by ``family:variant:label``.

    Attributes:
        dynamic: With the preset's own ranges.
        fixed: Every axis of the family has one size, as with ``--fixed-shapes``.
    """

    dynamic: Mapping[str, Component]
    fixed: Mapping[str, Component]


@functools.cache
def describe_all() -> NetworkDescription:
    """Describe them, once for all tests."""
    dynamic: dict[str, Component] = {}
    fixed: dict[str, Component] = {}
    for family in BUILT_IN:
        axes = family.presets["tiny"].axes

        with open_checkpoint(family, "tiny") as checkpoint:
            plans = {"": family.plan, **{name: variant.plan for name, variant in family.variants.items()}}
            for variant, plan in plans.items():
                for found, ranges in ((dynamic, axes), (fixed, tuple(axis.fixed for axis in axes))):
                    for component in plan(checkpoint, ranges).components:
                        found[":".join(filter(None, (family.name, variant, component.label)))] = component
    return NetworkDescription(dynamic, fixed)


def config_of(component: Component, engine: Engine = Engine.ONNXRUNTIME) -> Any:
    """Return the configuration that an export gives to a component as a model of its own."""
    return model_config(component, "m", engine)
