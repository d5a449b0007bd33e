"""A FramePack checkpoint as small as there can be one, and its graphs, made once for a whole test run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from filelock import FileLock
from tiny_exports import exported_once

from slipway_export.families.framepack_i2v.family import FAMILY
from slipway_export.families.framepack_i2v.random_checkpoint import write_checkpoint
from slipway_export.run import ExportResult
from slipway_export.spec import Axis

# The tiny checkpoint with as few layers as there can be: what is traced grows with them.
FEWER: dict[str, dict[str, Any]] = {
    "transformer": {"num_layers": 1, "num_single_layers": 1},
    "text_encoder": {"num_hidden_layers": 3},
    "text_encoder_2": {"num_hidden_layers": 1},
    "image_encoder": {"num_hidden_layers": 1},
    "vae": {},
}
AXES = (
    Axis("batch", 1, 1, 2),
    Axis("token_height", 1, 2, 6),
    Axis("token_width", 1, 2, 6),
    Axis("text_tokens", 1, 12, 256),
)


def small_checkpoint(shared: Path) -> Path:
    """Return the checkpoint, written by the first process that asks. Read only."""
    folder = shared / "framepack"
    with FileLock(shared / "framepack.lock"):
        if not folder.exists():
            folder.mkdir()
            configs = FAMILY.presets["tiny"].configs
            fewer = {file: configs[file] | FEWER[file.partition("/")[0]] for file in configs}
            write_checkpoint(folder, fewer, seed=1)
    return folder


def small_repository(shared: Path) -> tuple[Path, ExportResult]:
    """Return the repository of all its graphs, and what the export reported. Read only."""
    return exported_once(shared, "framepack_i2v", str(small_checkpoint(shared)), axes=AXES)
