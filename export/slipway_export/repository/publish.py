"""Atomic placement of exported models in a Triton model repository.

Models are built in a staging folder beside the repository (`staging.py`), because Triton treats every folder
inside as a model, hidden ones too. They are renamed into place once everything in the export is verified.
Each placed model has a `manifest.json` with the hash of every file, which tells a later export what it may
replace. The manifest also lists what its graphs were made of, which tells a later export what it need not
make again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import slipway_models
from slipway_export.repository.config import authored_config
from slipway_export.repository.staging import staging
from slipway_export.spec import AuthoredModel, FileContent
from slipway_serving.protocol import distribution
from slipway_serving.protocol.cancellation import CancelRequest
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.runtime.in_process import read_config

MANIFEST = "manifest.json"
_VERSIONED = (distribution.NAME, "torch", "onnx", "onnxscript", "onnxruntime", "diffusers", "transformers")


def stage_authored(model: AuthoredModel, staged: Path) -> Path:
    """Copy an authored model and the files that the export adds to it into the staging folder."""
    folder = staged / model.name
    shutil.copytree(
        slipway_models.FOLDER / (model.source or model.name),
        folder,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    # Triton loads no model without a version folder, and an empty one of an ensemble is in no wheel.
    (folder / "1").mkdir(exist_ok=True)
    for name, content in model.files.items():
        _write(folder / name, content)
    if model.request is not None:
        config = folder / "config.pbtxt"
        events = model.events or model.request.events
        text = config.read_text(encoding="utf-8")
        told = (model.usual, model.ranges, model.words, model.examples, model.note)
        made = authored_config(text, model.request, events, *told)
        config.write_text(made, "utf-8")
    return folder


def add_canceller(authored: Sequence[AuthoredModel]) -> list[AuthoredModel]:
    """Return authored models, plus the model that ends requests if any of them streams its answers."""
    sources = (slipway_models.FOLDER / (model.source or model.name) for model in authored)
    if not any(
        read_config(source).get("model_transaction_policy", {}).get("decoupled") for source in sources
    ):
        return list(authored)
    return [*authored, AuthoredModel(CancelRequest.model, request=CancelRequest)]


def _write(target: Path, content: FileContent) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        if content.is_dir():
            shutil.copytree(content, target)
        else:
            shutil.copyfile(content, target)
    else:
        target.write_bytes(content if isinstance(content, bytes) else content())


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file to another place, or copy it there; nothing writes into either, so one on disk is enough.

    Args:
        source: File, or a link to it.
        target: Path in the other place; a file of that name is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.samefile(source):
        return
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # The file system has no hard links, or the two paths are on different ones.
        shutil.copyfile(source, target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(model: Path, facts: Mapping[str, Any], digest: Callable[[Path], str] = _sha256) -> None:
    """Write a staged model's manifest: the given facts, library versions and file hashes.

    Args:
        model: Folder of the model.
        facts: Facts of the export.
        digest: Function that returns the sha256 of a file.
    """
    manifest = {
        "format": 1,
        "written_by": "slipway",
        "model": model.name,
        **facts,
        "versions": library_versions(),
        "files": hashes(model, digest),
    }
    text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
    (model / MANIFEST).write_text(text, encoding="utf-8")


def library_versions() -> dict[str, str | None]:
    """Return the versions of the libraries that take part in an export; None for those not installed."""
    return {name: _version(name) for name in _VERSIONED}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def hashes(model: Path, digest: Callable[[Path], str] = _sha256) -> dict[str, str]:
    """Return the sha256 of every file of a model's folder except the manifest, by relative path."""
    return {
        path.relative_to(model).as_posix(): digest(path)
        for path in sorted(model.rglob("*"))
        if path.is_file() and path.name != MANIFEST and "__pycache__" not in path.parts
    }


def check_replaceable(repository: Path, names: list[str], digest: Callable[[Path], str] = _sha256) -> None:
    """Refuse to replace models that were not placed by an export, or were changed since.

    Args:
        repository: Repository of the models.
        names: Names of the models, existing or not.
        digest: Function that returns the sha256 of a file.

    Raises:
        InvalidRequest: A model may not be replaced. The message names every such model and the reason.
    """
    problems = [
        f"model {name} must be unchanged since an export placed it to be replaced, got {reason}"
        for name in names
        if (repository / name).exists() and (reason := find_modification(repository / name, digest))
    ]
    if problems:
        raise InvalidRequest(f"repository {repository}: " + " | ".join(problems) + "; try --force")


def find_modification(model: Path, digest: Callable[[Path], str] = _sha256) -> str | None:
    """Return the reason why a model is not as an export placed it; None if it is."""
    try:
        manifest = json.loads((model / MANIFEST).read_text(encoding="utf-8"))
        written, files = manifest["written_by"], dict(manifest["files"])
    except FileNotFoundError:
        return f"no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"an unreadable {MANIFEST} ({error})"
    if written != "slipway":
        return f"{MANIFEST} written by {written!r}"
    now = hashes(model, digest)
    changed = sorted(name for name in files.keys() | now.keys() if files.get(name) != now.get(name))
    return f"files changed since the export: {', '.join(changed)}" if changed else None


@contextlib.contextmanager
def placing(staged: Path, repository: Path, names: list[str]) -> Iterator[None]:
    """Place staged models in a repository, each in place of the model of its name.

    An error during placement or inside the block restores the previous models, and moves the new ones back to
    the staging folder.

    Raises:
        InvalidRequest: A rename failed; the repository is unchanged.
    """
    replaced = staged / "replaced"
    replaced.mkdir()
    replaced_names: list[str] = []
    try:
        try:
            for name in names:
                target = repository / name
                if target.exists():
                    target.rename(replaced / name)
                replaced_names.append(name)
                (staged / name).rename(target)
        except OSError as error:
            raise InvalidRequest(
                f"repository {repository}: models could not be moved into place ({error})"
            ) from None
        yield
    except BaseException:
        for name in reversed(replaced_names):
            with contextlib.suppress(OSError):
                (repository / name).rename(staged / name)
            shutil.rmtree(repository / name, ignore_errors=True)
            if (replaced / name).exists():
                (replaced / name).rename(repository / name)
        raise


def remove(repository: Path, name: str) -> None:
    """Remove a model from a repository atomically."""
    with staging(repository) as staged:
        (repository / name).rename(staged / name)
