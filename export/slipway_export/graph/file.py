"""Export of a single graph to a file with its parity report, written completely or not at all.

The graph is `FILE.onnx`, with its weights in `FILE.onnx.data` if it is large. The report is `FILE.onnx.json`;
it contains the hashes of both files, by which a later export knows which files it may replace.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipway_export.repository.publish import library_versions
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.system.temporary_folders import TemporaryFolder

_SUFFIX = ".onnx"


@contextlib.contextmanager
def staged_file(output: Path) -> Iterator[Path]:
    """Create a temporary folder beside the output and yield the path in it to write the graph to.

    Raises:
        InvalidRequest: The name does not end with ``.onnx``, or the folder of the output is not writable.
    """
    if output.suffix != _SUFFIX or output.is_dir():
        raise InvalidRequest(f"output must be a file whose name ends with {_SUFFIX}, got {output}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        opened = TemporaryFolder(f".{output.name}.unfinished-", output.parent)
    except OSError as error:
        raise InvalidRequest(f"output must be in a writable folder, got {output} ({error})") from None
    with opened as folder:
        yield folder / output.name


def write_report(graph: Path, facts: Mapping[str, Any]) -> None:
    """Write the report of a staged graph with the given facts, library versions and file hashes."""
    content = {
        "format": 1,
        "written_by": "slipway",
        **facts,
        "versions": library_versions(),
        "files": {path.name: _sha256(path) for path in (graph, _data(graph)) if path.exists()},
    }
    _report(graph).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def check_own(output: Path) -> None:
    """Check that an existing output was written by an export and is unchanged, so that it may be replaced.

    Raises:
        InvalidRequest: An existing file is not from an export, or was changed. The message names the files.
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
            f"output {output} must be new, or unchanged since slipway wrote it, got {names};"
            " try --force to replace it"
        )


def place_file(staged: Path, output: Path) -> None:
    """Move a staged graph, its data and its report to the output, replacing earlier files.

    The graph is moved last because it refers to its data. If an error occurs, the earlier files are restored.

    Raises:
        InvalidRequest: A rename failed; the earlier files are restored.
    """
    before = staged.parent / "replaced"
    before.mkdir()
    pairs = [(path_of(staged), path_of(output)) for path_of in (_report, _data, _graph)]
    replaced: list[Path] = []
    try:
        for source, target in pairs:
            if target.exists():
                target.rename(before / target.name)
            replaced.append(target)
            if source.exists():
                source.rename(target)
    except BaseException as error:
        for target in reversed(replaced):
            target.unlink(missing_ok=True)
            if (before / target.name).exists():
                (before / target.name).rename(target)
        if isinstance(error, OSError):
            raise InvalidRequest(f"output {output} could not be moved into place ({error})") from None
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
