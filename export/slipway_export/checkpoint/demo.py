"""Preset `demo`: a small trained checkpoint from the distribution `slipway-triton-demo`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway_export.spec import Axis, Preset
from slipway_serving.protocol.distribution import DEMO_HINT
from slipway_serving.protocol.errors import InvalidRequest

DEMO = "demo"


def demo_preset(
    family: str,
    summary: str,
    axes: tuple[Axis, ...],
    *,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    beside: Mapping[str, str] | None = None,
) -> Preset:
    """Return the preset of a family's trained checkpoint.

    Args:
        family: Name of the checkpoint's folder in `slipway_demo`.
        summary: Description in one line, for people.
        axes: Ranges to export the checkpoint with.
        configs: Configuration files as in :attr:`Preset.configs`; None if no file tells the checkpoint from
            others of its family.
        beside: Families whose checkpoints are copied into subfolders, by name of the subfolder.
    """

    def write(folder: Path, seed: int) -> None:
        if seed:
            raise InvalidRequest(f"seed must be left out for {DEMO}, whose weights are trained, got {seed}")
        shutil.copytree(_folder(family), folder, dirs_exist_ok=True)
        for name, other in (beside or {}).items():
            shutil.copytree(_folder(other), folder / name)

    return Preset(summary, configs or {}, axes, write)


def _folder(family: str) -> Path:
    try:
        from slipway_demo import folder

        return folder(family)
    except (ModuleNotFoundError, FileNotFoundError):
        raise InvalidRequest(
            f"checkpoint {DEMO} must be installed for {family}, got none; try {DEMO_HINT}"
        ) from None
