"""Exports of tiny checkpoints, each made once for a whole test run, by the first process that asks."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

if TYPE_CHECKING:
    from slipway_export.run import ExportResult


def checkpoint_once(shared: Path, family: str, preset: str = "tiny") -> Path:
    """Return a preset's checkpoint of a family, seed 0. Read only."""
    from slipway_export.families import family_named

    folder = shared / "checkpoints" / (family if preset == "tiny" else f"{family}-{preset}")
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            family_named(family).presets[preset].write(folder, 0)
    return folder


def exported_once(shared: Path, family: str, checkpoint: str, **options: Any) -> tuple[Path, ExportResult]:
    """Return the repository of an export, and what the export reported. Read only: copy it to change it.

    Args:
        shared: Folder that all processes of the test run have in common.
        family: Name of the family.
        checkpoint: Preset or folder of the checkpoint.
        options: Fields of :class:`ExportOptions`, without a repository or file.
    """
    from slipway_export.families import family_named
    from slipway_export.options import ExportOptions
    from slipway_export.run import run_export

    asked = repr((checkpoint, sorted(options.items())))
    folder = shared / "exports" / f"{family}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    repository, kept = folder / "repository", folder / "result.pickle"
    with FileLock(folder / "lock"):
        if not kept.exists():
            made = run_export(family_named(family), ExportOptions(checkpoint, repository, **options))
            kept.write_bytes(pickle.dumps(made))
    result: ExportResult = pickle.loads(kept.read_bytes())
    return repository, result
