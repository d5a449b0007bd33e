"""Places exported models into a Triton model repository, whole or not at all.

Models are built in a staging folder beside the repository (Triton takes every folder inside for a
model, hidden ones too) and renamed into place once everything of the export is verified; a killed
export leaves no half model, and the next one sweeps its staging folder away. Each placed model has a
`manifest.json` with the hash of every file, by which a later export knows what it may replace.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

import slipway_models
from slipway_export.config import authored_config
from slipway_export.spec import AuthoredModel, FileContent
from slipway_serving import distribution
from slipway_serving.errors import InvalidRequest

MANIFEST = "manifest.json"
_VERSIONED = (distribution.NAME, "torch", "onnx", "onnxscript", "onnxruntime", "diffusers", "transformers")


@contextlib.contextmanager
def staging(repository: Path) -> Iterator[Path]:
    """Open a staging folder beside a repository, creating the repository where it is missing.

    Staging folders of exports that were killed are removed first.

    Raises:
        InvalidRequest: the repository is not a folder, it or the folder around it cannot be written, or
            the two are on different file systems, where a model could not be renamed into place.
    """
    repository = repository.resolve()
    prefix = f".{repository.name}.slipway-staging-"
    try:
        repository.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=repository.parent))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"repository must be a folder that can be written, in one that can, got {repository} ({error})"
        ) from None
    try:
        _check_renames(folder, repository)
        _sweep(repository.parent, prefix)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_renames(folder: Path, repository: Path) -> None:
    if folder.stat().st_dev != repository.stat().st_dev:
        raise InvalidRequest(
            "repository must be on the file system of the folder around it,"
            f" got the mount point {repository}; try {repository / 'models'}"
        )
    if not os.access(repository, os.W_OK | os.X_OK):
        raise InvalidRequest(f"repository must be a folder that can be written, got {repository}")


def _sweep(folder: Path, prefix: str) -> None:
    for left in folder.glob(f"{glob.escape(prefix)}*"):
        pid = left.name.removeprefix(prefix).split("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def stage_authored(model: AuthoredModel, staged: Path) -> Path:
    """Copy an authored model and the files that export adds to it into the staging folder."""
    folder = staged / model.name
    shutil.copytree(
        slipway_models.FOLDER / (model.source or model.name),
        folder,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name, content in model.files.items():
        _write(folder / name, content)
    if model.request is not None:
        config = folder / "config.pbtxt"
        events = model.events or model.request.events
        config.write_text(authored_config(config.read_text(encoding="utf-8"), model.request, events), "utf-8")
    return folder


def _write(target: Path, content: FileContent) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        if content.is_dir():
            shutil.copytree(content, target)
        else:
            shutil.copyfile(content, target)
    else:
        target.write_bytes(content if isinstance(content, bytes) else content())


def write_manifest(model: Path, facts: Mapping[str, Any]) -> None:
    """Write a staged model's manifest: the given facts, library versions and file hashes."""
    manifest = {
        "format": 1,
        "written_by": "slipway",
        "model": model.name,
        **facts,
        "versions": library_versions(),
        "files": hashes(model),
    }
    text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
    (model / MANIFEST).write_text(text, encoding="utf-8")


def library_versions() -> dict[str, str | None]:
    """Return the versions of what has a part in an export; None for what is not installed."""
    return {name: _version(name) for name in _VERSIONED}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def hashes(model: Path) -> dict[str, str]:
    """Return the sha256 of every file of a model's folder but the manifest, by relative path."""
    found = {}
    for path in sorted(model.rglob("*")):
        if path.is_file() and path.name != MANIFEST and "__pycache__" not in path.parts:
            with path.open("rb") as file:
                found[path.relative_to(model).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def check_replaceable(repository: Path, names: list[str]) -> None:
    """Refuse to replace models that were not placed by an export, or were changed since.

    Raises:
        InvalidRequest: names every such model and what is foreign about it.
    """
    problems = [
        f"model {name} must have been written by slipway to be replaced, got {reason}"
        for name in names
        if (repository / name).exists() and (reason := foreign(repository / name))
    ]
    if problems:
        raise InvalidRequest(f"repository {repository}: " + " | ".join(problems) + "; try --force")


def foreign(model: Path) -> str | None:
    """Say why a model is not as an export placed it; None if it is."""
    try:
        manifest = json.loads((model / MANIFEST).read_text(encoding="utf-8"))
        written, files = manifest["written_by"], dict(manifest["files"])
    except FileNotFoundError:
        return f"no {MANIFEST}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"an unreadable {MANIFEST} ({error})"
    if written != "slipway":
        return f"{MANIFEST} written by {written!r}"
    now = hashes(model)
    changed = sorted(name for name in files.keys() | now.keys() if files.get(name) != now.get(name))
    return f"files changed since the export: {', '.join(changed)}" if changed else None


@contextlib.contextmanager
def placed(staged: Path, repository: Path, names: list[str]) -> Iterator[None]:
    """Have staged models in a repository, each in place of the one of its name.

    An error on the way or inside the block puts the models back that were there before.

    Raises:
        InvalidRequest: a rename failed; the repository is as it was.
    """
    replaced = staged / "replaced"
    replaced.mkdir()
    moved: list[str] = []
    try:
        try:
            for name in names:
                target = repository / name
                if target.exists():
                    target.rename(replaced / name)
                moved.append(name)
                (staged / name).rename(target)
        except OSError as error:
            raise InvalidRequest(f"repository {repository}: models could not be placed ({error})") from None
        yield
    except BaseException:
        for name in reversed(moved):
            shutil.rmtree(repository / name, ignore_errors=True)
            if (replaced / name).exists():
                (replaced / name).rename(repository / name)
        raise


def remove(repository: Path, name: str) -> None:
    """Remove a model from a repository, in one step."""
    with staging(repository) as staged:
        (repository / name).rename(staged / name)
