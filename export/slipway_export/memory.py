"""How much memory this process may still take: the machine's, and what its control groups leave of it.

A container's limit is not in what the machine says to be free; a process that goes over it is killed
without a word. The page cache counts as free in both, since the kernel gives it up for what is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def available_memory(mount: Path = _MOUNT, own: Path = _OWN) -> int:
    """Return how many bytes this process may still take.

    Args:
        mount: where the control groups are mounted, those of version 1 in a folder for each controller.
        own: the file that says which groups this process is in.
    """
    return min([int(psutil.virtual_memory().available), *_left(mount, own)])


def fits(needed_bytes: int) -> bool:
    """Whether this process may still take so many bytes."""
    return needed_bytes <= available_memory()


def _left(mount: Path, own: Path) -> Iterator[int]:
    """Give what each group that this process is in, or one around it, has left under its limit."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # No control groups: not Linux, or none mounted.
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            names = ("memory.max", "memory.current", "")
            top = mount
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            top = mount / "memory"
        else:
            continue
        group = top / path.lstrip("/")
        # A container sees its own group as the mount, and may still read its path on the host.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            if (left := _left_in(folder, *names)) is not None:
                yield left


def _left_in(group: Path, limit_name: str, usage_name: str, prefix: str) -> int | None:
    """Return what a group has left under its limit; None for one without."""
    try:
        limit = (group / limit_name).read_text(encoding="utf-8").strip()
        if limit == "max":
            return None
        usage = int((group / usage_name).read_text(encoding="utf-8"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
    except OSError:  # The topmost group of version 2 has no limit, and one on the host is not there.
        return None
    cache = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0, int(limit) - max(0, usage - cache))
