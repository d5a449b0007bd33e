"""The authored models as an export of each family's tiny checkpoint stages them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from slipway_export.checkpoint.opening import open_checkpoint
from slipway_export.families import BUILT_IN
from slipway_export.repository.publish import add_canceller, stage_authored


@dataclass(frozen=True)
class Staged:
    """What the exports of all families and their variants place of authored models.

    Attributes:
        configs: by the name of the served model.
        sources: the folders of `slipway_models` that they come from.
    """

    configs: Mapping[str, Any]
    sources: frozenset[str]


@functools.cache
def stage_all() -> Staged:
    """Stage them, once for all tests."""
    configs: dict[str, Any] = {}
    sources: set[str] = set()
    for family in BUILT_IN:
        plans = [family.plan, *(variant.plan for variant in family.variants.values())]
        axes = family.presets["tiny"].axes
        with open_checkpoint(family, "tiny") as checkpoint, TemporaryDirectory() as folder:
            for model in add_canceller([m for plan in plans for m in plan(checkpoint, axes).authored]):
                config = stage_authored(replace(model, files={}), Path(folder)) / "config.pbtxt"
                text = config.read_text(encoding="utf-8")
                configs[model.name] = text_format.Parse(text, model_config_pb2.ModelConfig())
                sources.add(str(model.source or model.name))
                shutil.rmtree(config.parent)
    return Staged(configs, frozenset(sources))
