"""A graph in a file of its own, with its parity report: written whole or not at all.

`FILE.onnx`, its weights in `FILE.onnx.data` where it is large, and the report in `FILE.onnx.json`, which has
the hash of each: by it a later export knows what it may replace.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipway_export.repository import library_versions
from slipway_serving.errors import InvalidRequest
from slipway_serving.temporary_folders import TemporaryFolder

_SUFFIX = ".onnx"


@contextlib.contextmanager
def staged_file(output: Path) -> Iterator[Path]:
    """Open a folder beside a graph's file, and yield the path to write the graph to first.

    Raises:
        InvalidRequest: the name is not one of a graph, or the folder around it cannot be written.
    """
    if output.suffix != _SUFFIX or output.is_dir():
        raise InvalidRequest(f"output must be a file FILE{_SUFFIX}, got {output}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        opened = TemporaryFolder(f".{output.name}.unfinished-", output.parent)
    except OSError as error:
        raise InvalidRequest(
            f"output must be in a folder that can be written, got {output} ({error})"
        ) from None
    with opened as folder:
        yield folder / output.name


def write_report(graph: Path, facts: Mapping[str, Any]) -> None:
    """Write the report of a staged graph: the given facts, library versions and file hashes."""
    content = {
        "format": 1,
        "written_by": "slipway",
        **facts,
        "versions": library_versions(),
        "files": {path.name: _sha256(path) for path in (graph, _data(graph)) if path.exists()},
    }
    _report(graph).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def check_own(output: Path) -> None:
    """Refuse to replace a graph that was not written by an export, or was changed since.

    Raises:
        InvalidRequest: says what is foreign about the file.
    """
    found = [path for path in (output, _data(output), _report(output)) if path.exists()]
    if not found:
        return
    try:
        content = json.loads(_report(output).read_text(encoding="utf-8"))
        own = content["written_by"] == "slipway" and all(
            content["files"].get(path.name) == _sha256(path) for path in found if path != _report(output)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        own = False
    if not own:
        names = ", ".join(path.name for path in found)
        raise InvalidRequest(
            f"output {output} must be new, or written by slipway and unchanged since, got {names};"
            " try --force"
        )


def place_file(staged: Path, output: Path) -> None:
    """Move a staged graph, its data and its report into place, in place of those that were there.

    The graph comes last, since it refers to its data; an error on the way puts the former files back.

    Raises:
        InvalidRequest: a rename failed; the files are as they were.
    """
    before = staged.parent / "replaced"
    before.mkdir()
    pairs = [(made(staged), made(output)) for made in (_report, _data, _graph)]
    moved: list[Path] = []
    try:
        for source, target in pairs:
            if target.exists():
                target.rename(before / target.name)
            moved.append(target)
            if source.exists():
                source.rename(target)
    except BaseException as error:
        for target in reversed(moved):
            target.unlink(missing_ok=True)
            if (before / target.name).exists():
                (before / target.name).rename(target)
        if isinstance(error, OSError):
            raise InvalidRequest(f"output {output} could not be placed ({error})") from None
        raise


def _graph(path: Path) -> Path:
    return path


def _data(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


def _report(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
