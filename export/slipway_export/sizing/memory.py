"""Memory that this process may still allocate, by the machine's free memory and its control groups.

The machine's free memory does not reflect a container's limit, and the kernel kills a process that exceeds
the limit without any message. The page cache counts as free in both, since the kernel reclaims it on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def available_memory(mount: Path = _MOUNT, own: Path = _OWN) -> int:
    """Return how many bytes this process may still allocate.

    Args:
        mount: Mount point of the control groups; version 1 has a folder for each controller there.
        own: File that lists the control groups of this process.
    """
    return min([int(psutil.virtual_memory().available), *_left(mount, own)])


def fits(needed_bytes: int) -> bool:
    """Return whether this process may still allocate this many bytes."""
    return needed_bytes <= available_memory()


def _left(mount: Path, own: Path) -> Iterator[int]:
    """Yield the bytes left under the limit of each control group of this process and of its parents."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # There are no control groups: not Linux, or none mounted.
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
        # In a container the mount is the container's own group, while the path may be that on the host.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            if (left := _left_in(folder, *names)) is not None:
                yield left


def _left_in(group: Path, limit_name: str, usage_name: str, prefix: str) -> int | None:
    """Return the bytes left under a group's limit; None for a group without a limit."""
    try:
        limit = (group / limit_name).read_text(encoding="utf-8").strip()
        if limit == "max":
            return None
        usage = int((group / usage_name).read_text(encoding="utf-8"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="utf-8").splitlines())
    except OSError:  # The root group of version 2 has no limit, and a path of the host is missing.
        return None
    cache = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0, int(limit) - max(0, usage - cache))
