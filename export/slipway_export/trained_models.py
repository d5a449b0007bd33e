"""Folder of trained models: `{custom,default}/<id>/{model.pt,model.onnx,metadata.json}`.

This is WakeBuilder's layout: `custom` has the models that users trained, `default` those of an installation,
and `custom` takes precedence if both have an id. A model's `metadata.json` describes it. Its key `onnx`
records the result of the last export, so that the state outlives the process. :func:`export_model` exports a
trained model to a Triton repository and leaves a copy of the graph beside the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway_export.spec import Engine
from slipway_serving.families.wakeword.words import check_word, is_word
from slipway_serving.protocol.errors import InvalidRequest, SlipwayError
from slipway_serving.system.temporary_folders import TemporaryFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipway_export.options import ExportOptions
    from slipway_export.progress import Report
    from slipway_export.run import ExportResult, Publish
    from slipway_export.spec import Family

KINDS = ("custom", "default")
WEIGHTS, GRAPH, METADATA = "model.pt", "model.onnx", "metadata.json"


class UnknownModel(InvalidRequest):
    """Error for an id that the models folder does not contain."""


@dataclass(frozen=True)
class Status:
    """State of a trained model.

    Args:
        id: Name of the model's folder.
        kind: Subfolder of the model, ``custom`` or ``default``.
        wake_word: Wake word as people say it; None if the metadata lacks it.
        threshold: Lowest probability that counts as a detection; None if the metadata lacks it.
        has_pt: True if the model has weights.
        has_onnx: True if the model has a graph.
        onnx_size_bytes: Size of the graph with its data; None without a graph.
        onnx_is_current: True if the graph was exported from the present weights.
        onnx_precision: Precision of the graph; None if the graph was not exported here.
        onnx_variant: Variant of the export; None for the family's own.
        onnx_error: Reason why the last export failed; None if it did not fail.
    """

    id: str
    kind: str
    wake_word: str | None
    threshold: float | None
    has_pt: bool
    has_onnx: bool
    onnx_size_bytes: int | None
    onnx_is_current: bool
    onnx_precision: str | None
    onnx_variant: str | None
    onnx_error: str | None


@dataclass(frozen=True)
class Library:
    """Library of trained models in a folder.

    Args:
        folder: Folder with ``custom`` and ``default``; it need not exist yet.
    """

    folder: Path

    def ids(self) -> list[str]:
        """Return the ids of all models; folders whose names are not valid ids are ignored."""
        names = {
            entry.name
            for kind in KINDS
            if (self.folder / kind).is_dir()
            for entry in (self.folder / kind).iterdir()
            if is_word(entry.name) and self._is_model(entry)
        }
        return sorted(names)

    def find(self, name: str) -> Path:
        """Return the folder of a model.

        Raises:
            InvalidRequest: The name is not a valid id. This keeps every path inside the models folder.
            UnknownModel: No model has this id.
        """
        check_word(name, "models")
        for kind in KINDS:
            if self._is_model(folder := self.folder / kind / name):
                return folder
        known = ", ".join(self.ids()) or "none yet; try `slipway train`"
        raise UnknownModel(f"models: model must be one of those in {self.folder} ({known}), got {name}")

    def create(self, name: str) -> Path:
        """Return the folder of a user's model, and create it if it is missing.

        Raises:
            InvalidRequest: The name is not a valid id, the folder cannot be created, or it is a link.
        """
        folder = self.folder / "custom" / check_word(name, "models")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"models: folder must be writable, got {folder} ({error})") from None
        if folder.is_symlink():
            raise InvalidRequest(f"models: {folder} must be a folder, got a symbolic link")
        return folder

    def status(self, name: str) -> Status:
        """Return the state of a model.

        Raises:
            InvalidRequest: The model cannot be found (see :meth:`find`), or its metadata cannot be read.
        """
        folder = self.find(name)
        metadata = read_metadata(folder)
        export = metadata.get("onnx", {})
        graph = _graph_files(folder)
        has_onnx = (folder / GRAPH).is_file()
        threshold = metadata.get("threshold")
        return Status(
            id=name,
            kind=folder.parent.name,
            wake_word=metadata.get("wake_word"),
            threshold=float(threshold) if isinstance(threshold, int | float) else None,
            has_pt=(folder / WEIGHTS).is_file(),
            has_onnx=has_onnx,
            onnx_size_bytes=sum(file.stat().st_size for file in graph) if has_onnx else None,
            onnx_is_current=has_onnx and export.get("weights_sha256") == _sha256(folder / WEIGHTS),
            onnx_precision=export.get("precision") if has_onnx else None,
            onnx_variant=export.get("variant") if has_onnx else None,
            onnx_error=export.get("error"),
        )

    def record_failure(self, name: str, error: str) -> None:
        """Record why a model's export failed; its weights and any older graph stay."""
        folder = self.find(name)
        _update_export(folder, {"error": error, "failed_at": _now()})

    def record_export(self, name: str, version: Path, facts: Mapping[str, Any]) -> None:
        """Copy an exported graph beside a model's weights and record the export in the metadata.

        Args:
            name: Id of the model.
            version: Version folder of the served model, which contains the graph.
            facts: Further metadata entries about the export.
        """
        folder = self.find(name)
        with _temporary_folder(folder) as part:
            for file in _graph_files(version):
                shutil.copyfile(file, part / file.name)
            _remove_graph(folder)
            # The graph refers to its data file, so it is moved after that file.
            for file in sorted(part.iterdir(), reverse=True):
                file.replace(folder / file.name)
        entries = {"weights_sha256": _sha256(folder / WEIGHTS), "exported_at": _now()}
        write_metadata(folder, read_metadata(folder) | {"onnx": entries | dict(facts)})

    def delete_graph(self, name: str) -> None:
        """Remove a model's graph; the weights stay.

        Raises:
            UnknownModel: The model has no graph or does not exist.
        """
        folder = self.find(name)
        if not (folder / GRAPH).is_file():
            raise UnknownModel(f"models: {name} must have an exported graph to delete, got none")
        _remove_graph(folder)
        metadata = read_metadata(folder)
        metadata.pop("onnx", None)
        write_metadata(folder, metadata)

    def _is_model(self, folder: Path) -> bool:
        # A link could point outside the models folder.
        return not folder.is_symlink() and any((folder / file).is_file() for file in (WEIGHTS, METADATA))


def served_model(family: Family, name: str, variant: str | None) -> str:
    """Return the name under which Triton serves a trained model of a family."""
    return f"{family.name}_{name}" if variant is None else f"{family.name}_{name}_{variant}"


def export_model(
    family: Family,
    library: Library,
    name: str,
    options: ExportOptions,
    report: Report = lambda _: None,
    publish: Publish = lambda _: None,
) -> ExportResult:
    """Export a trained model, copy its graph beside its weights, and record the result.

    Args:
        family: Family of the trained model (a family's ``trained``).
        library: Library that contains the model.
        name: Id of the model.
        options: Options of the export; the model's folder replaces their checkpoint.
        report: Callback as in :func:`slipway_export.run.run_export`.
        publish: Callback as in :func:`slipway_export.run.run_export`.

    Raises:
        SlipwayError: The export failed. The weights stay, and the model's status gives the reason.
    """
    from slipway_export.run import run_export

    if options.repository is None:
        raise InvalidRequest("export: repository must be given for a trained model, got an output file")
    if Engine.TORCH in (options.engine, *options.engines.values()):
        raise InvalidRequest(
            "export: engine must be one that writes a graph, got torch; to serve a trained model with"
            " PyTorch, use --checkpoint with the model's folder"
        )
    if options.repository.resolve() == library.folder.resolve():
        raise InvalidRequest(
            "export: repository must not be the folder of trained models, because Triton would read the"
            f" folders in it as models, got {library.folder} for both"
        )
    folder = library.find(name)
    try:
        result = run_export(family, replace(options, checkpoint=str(folder)), report, publish)
        if result.placed:
            version = options.repository / served_model(family, name, options.variant) / "1"
            facts = {"precision": options.precision.value, "variant": options.variant}
            library.record_export(name, version, facts)
    except SlipwayError as error:
        library.record_failure(name, str(error))
        raise
    except Exception as error:
        library.record_failure(name, f"the export failed: {type(error).__name__}: {error}")
        raise
    return result


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read a model's metadata, which is empty if the file is missing.

    Raises:
        InvalidRequest: The file is not a JSON object.
    """
    try:
        content = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidRequest(f"models: {folder / METADATA} must be JSON, got {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("onnx", {}), dict):
        raise InvalidRequest(f"models: {folder / METADATA} must be a JSON object, and so must its entry onnx")
    return content


def write_metadata(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a model's metadata atomically."""
    part = folder / f".{METADATA}.{os.getpid()}.part"
    part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(folder / METADATA)


def _update_export(folder: Path, changes: Mapping[str, Any]) -> None:
    metadata = read_metadata(folder)
    write_metadata(folder, metadata | {"onnx": metadata.get("onnx", {}) | dict(changes)})


def _graph_files(folder: Path) -> list[Path]:
    """Return the files of a graph: the graph itself and, if it is large, the data beside it."""
    return sorted(folder.glob(f"{GRAPH}*"))


def _remove_graph(folder: Path) -> None:
    for file in _graph_files(folder):
        file.unlink()


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder on the same file system, from which complete files are moved into place."""
    with TemporaryFolder(".unfinished-", folder) as part:
        yield part


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
