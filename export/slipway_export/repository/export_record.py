"""Records of graphs that were made and verified, so that a later export need not make them again.

A record is stored in the staging folder beside the files it describes, and is written last. For placed
models, the manifest contains the same facts. A record is valid only as long as every file matches it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway_export.sizing.budget import LeftOut
from slipway_export.spec import Tolerance
from slipway_export.verification.comparison import ParityRow

_FOLDER = "made"
STEPS = "+steps"
"""Suffix of the name of a record of steps that were verified as one run."""


@dataclass(frozen=True)
class Record:
    """Record of a finished piece of an export: what it was made of, and its files.

    Args:
        name: Name of the model and the graph, e.g. ``wan_t2v_vae_decoder/next``.
        identity: Identity of what it was made by (:func:`slipway_export.repository.identity.identity`).
        read: Digests of the checkpoint's files that were read
            (:meth:`slipway_export.checkpoint.provenance.ReadRecord.digests`).
        files: Digest (sha256) of each file of the graph, by its path in the folder of the record.
        rows: Parity rows of the graph.
        left_out: Points at which the graph was not verified.
    """

    name: str
    identity: str
    read: Mapping[str, str]
    files: Mapping[str, str]
    rows: tuple[ParityRow, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def model(self) -> str:
        """Name of the model that the graph is a part of."""
        return self.name.partition("/")[0]

    def write(self, folder: Path) -> None:
        """Write the record into a staging folder atomically."""
        path = _path(folder, self.name)
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.replace(path)

    def remove(self, folder: Path, others: Iterable[Record] = ()) -> None:
        """Remove the record from a staging folder, and those of its files that no other record there names.

        Args:
            folder: Folder to remove from.
            others: Other records of files there, as graphs of a component may share a file of weights.
        """
        _path(folder, self.name).unlink(missing_ok=True)
        shared = {file for record in (*records(folder), *others) for file in record.files}
        for file in self.files.keys() - shared:
            (folder / file).unlink(missing_ok=True)

    def move(self, source: Path, target: Path) -> None:
        """Move the files and then the record from one staging folder to another, which has no such record."""
        for file in self.files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            # Two graphs may share a file of weights, which was moved with the first one.
            if (source / file).exists():
                (source / file).rename(target / file)
        self.write(target)
        _path(source, self.name).unlink()

    def facts(self) -> dict[str, Any]:
        """Return the manifest's entry for the record; hashes and parity are elsewhere in the manifest."""
        return {
            "identity": self.identity,
            "read": dict(self.read),
            "files": [file.removeprefix(f"{self.model}/") for file in self.files],
            "points": sorted({row.point for row in self.rows}),
        }


def records(folder: Path) -> list[Record]:
    """Return the records in a staging folder; a file that is not a valid record is removed."""
    found = []
    for path in sorted((folder / _FOLDER).glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            left_out = tuple(LeftOut(**left) for left in content["left_out"])
            found.append(Record(**{**content, "rows": _rows(content["rows"]), "left_out": left_out}))
        except (ValueError, KeyError, TypeError):
            path.unlink()
    return found


def placed_record(manifest: Path, name: str, label: str, model: str = "") -> Record | None:
    """Return the record of a graph that is placed; None if the manifest has none.

    Args:
        manifest: Manifest of the model, or the report beside a single graph.
        name: Name of the record.
        label: Label of the graph in the parity table.
        model: Folder of the model, which is prefixed to the paths of the files.
    """
    prefix = f"{model}/" if model else ""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        entries = content["made"]
        own = entries[name]
        files = {f"{prefix}{file}": content["files"][file] for file in own["files"]}
        rows = _rows(content["parity"])
        left_out = left_out_of(
            (LeftOut(**left) for left in content["not_verified"]), label, steps=name.endswith(STEPS)
        )
        if name.endswith(STEPS):
            rows = tuple(row for row in rows if row.point in own["points"])
        else:  # Rows of points that were verified later belong to the graph too.
            of_steps = {
                point for other in entries if other.endswith(STEPS) for point in entries[other]["points"]
            }
            rows = tuple(row for row in rows if row.graph == label and row.point not in of_steps)
        return Record(name, own["identity"], own["read"], files, rows, left_out)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def left_out_of(left_out: Iterable[LeftOut], label: str, *, steps: bool) -> tuple[LeftOut, ...]:
    """Select the left-out points of one graph, or of its steps as one run, from those of an export."""
    return tuple(left for left in left_out if left.graph == label and (left.point == "steps") == steps)


def keep_finished(folder: Path) -> bool:
    """Remove everything from a staging folder but its records and their files; return True if any remain."""
    paths_to_keep = {folder / file for record in records(folder) for file in record.files}
    paths_to_keep |= {_path(folder, record.name) for record in records(folder)}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in paths_to_keep and path.parent != folder:
            # Files directly in the folder stay, because its lock is one of them.
            path.unlink()
    return bool(paths_to_keep)


def _rows(content: Iterable[Mapping[str, Any]]) -> tuple[ParityRow, ...]:
    return tuple(
        ParityRow(**{**row, "shape": tuple(row["shape"]), "bound": Tolerance(**row["bound"])})
        for row in content
    )


def _path(folder: Path, name: str) -> Path:
    return folder / _FOLDER / f"{name.replace('/', '.')}.json"
