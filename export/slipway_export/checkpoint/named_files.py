"""Checkpoints that are given as single files with any names and locations, rather than as a folder.

A family declares which paths of its layout may be given this way, each under a role (`Family.files`); the
command line has an option with the name of the role. The files, and further files that they refer to, are
linked into a folder in the family's layout, so the rest of an export handles it like any other checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slipway_export.spec import Family
from slipway_serving.protocol.errors import InvalidRequest, raise_all
from slipway_serving.system.temporary_folders import TemporaryFolder

CHECKPOINT_PREFIX = "slipway-export-checkpoint-"
"""Name prefix of the temporary folders in which checkpoints are written or linked."""


def checked_files(family: Family, files: Mapping[str, Path]) -> dict[str, Path]:
    """Check the files of a checkpoint and return them with the defaults of those left out.

    Args:
        family: Family of the checkpoint.
        files: Paths of the files, by role.

    Raises:
        InvalidRequest: The family lacks a role, or a role or file is missing. The message names each of them.
    """
    if unknown := [role for role in files if role not in family.files]:
        raise_all(
            family.name,
            [
                f"--{role} must be left out, got {files[role]}; {_ways(family, files[role])}"
                for role in unknown
            ],
        )
    defaults = {role: file.default for role, file in family.files.items() if file.default is not None}
    problems = [
        f"--{role} must be given with {', '.join(f'--{other}' for other in files)}, got none"
        for role in family.files
        if role not in files and role not in defaults
    ]
    found = defaults | dict(files)
    problems += [
        f"--{role} must be a file, got {path}{_own_copy(family, role)}"
        for role, path in found.items()
        if not path.is_file()
    ]
    raise_all(family.name, problems)
    return {role: found[role] for role in family.files}


def file_as_checkpoint(family: Family, path: Path) -> InvalidRequest:
    """Return the refusal of a single file that was given as a whole checkpoint."""
    return InvalidRequest(
        f"checkpoint must be a preset ({', '.join(family.presets)}), a folder, or a hub id, got the file"
        f" {path}; {_ways(family, path)}"
    )


def other_names(family: Family, folder: Path) -> str:
    """Return the options that name the files of a folder if these have other names than in the layout."""
    found: dict[str, Path] = {}
    for role, file in family.files.items():
        usual = folder / file.path
        beside = sorted(usual.parent.glob(f"*{usual.suffix}"))
        if usual.is_file():
            found[role] = usual
        elif beside:
            found[role] = max(beside, key=lambda path: path.stat().st_mtime)
        else:
            return ""
    return "try " + " ".join(f"--{role} {path}" for role, path in found.items()) if found else ""


def _ways(family: Family, path: Path) -> str:
    """Describe how a family takes a single file."""
    if family.files:
        needed = [role for role, file in family.files.items() if file.default is None]
        return f"try {' '.join(f'--{role} FILE' for role in needed)}"
    if family.parts:
        names = ", ".join(part.name for part in family.parts)
        return f"try --part NAME={path}, where NAME is one of {names}"
    return f"try --checkpoint with the folder {path.absolute().parent}"


def _own_copy(family: Family, role: str) -> str:
    if family.files[role].path not in family.supplied:
        return ""
    return "; try --checkpoint with the folder that has the weights, for which this file may be missing"


@contextmanager
def linked(family: Family, files: Mapping[str, Path]) -> Iterator[tuple[Path, str]]:
    """Create a folder in a family's layout that links to files; yield it with its name for messages.

    Args:
        family: Family of the checkpoint.
        files: Paths of the files, by role.

    Raises:
        InvalidRequest: The files are not valid (:func:`checked_files`), or a role's `leads_to` refuses one.
    """
    checked = checked_files(family, files)
    locations: dict[str, Path] = {}
    for role, path in checked.items():
        file = family.files[role]
        locations |= {file.path: path} | (dict(file.leads_to(path)) if file.leads_to else {})
    with TemporaryFolder(CHECKPOINT_PREFIX) as folder:
        for name, path in locations.items():
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield folder, ", ".join(f"{family.files[role].path}={path}" for role, path in checked.items())
