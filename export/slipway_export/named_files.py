"""A checkpoint that is given as files of any names and places, rather than as a folder.

A family says which paths of its layout may be given so, each under a role (`Family.files`); the command line
has an option of the role's name. The files are linked into a folder in the family's layout, so that nothing
else of an export knows the difference.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slipway_export.spec import Family
from slipway_serving.errors import raise_all


def check_files(family: Family, files: Mapping[str, Path]) -> None:
    """Check that the files are those that a family's checkpoint may be given as.

    Args:
        family: of the checkpoint.
        files: by role.

    Raises:
        InvalidRequest: naming every role that the family does not have or that is missing, and every file
            that does not exist.
    """
    if unknown := [role for role in files if role not in family.files]:
        raise_all(
            family.name,
            [f"--{role} must be left out, got {files[role]}; try --checkpoint" for role in unknown],
        )
    problems = [
        f"--{role} must be given with {', '.join(f'--{other}' for other in files)}, got none"
        for role in family.files
        if role not in files
    ]
    problems += [f"--{role} must be a file, got {path}" for role, path in files.items() if not path.is_file()]
    raise_all(family.name, problems)


@contextmanager
def linked(family: Family, files: Mapping[str, Path]) -> Iterator[tuple[Path, str]]:
    """Give a folder in a family's layout that links to files, and how messages name it.

    Args:
        family: of the checkpoint.
        files: by role.

    Raises:
        InvalidRequest: as :func:`check_files`.
    """
    check_files(family, files)
    with tempfile.TemporaryDirectory(prefix="slipway-checkpoint-") as folder:
        for role, path in files.items():
            link = Path(folder) / family.files[role]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield Path(folder), ", ".join(f"{family.files[role]}={path}" for role, path in files.items())
