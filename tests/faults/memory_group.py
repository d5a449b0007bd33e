"""A control group with a limit of memory, so that a test can have the kernel's own out-of-memory kill."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryGroup:
    """A control group; what its processes had before they joined is not counted by version 1.

    Attributes:
        folder: of the group.
        above: of the group that its processes came from, and go back to.
    """

    folder: Path
    above: Path

    def add(self, pid: int) -> None:
        """Have a process join, with what it starts from now on."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """How many of its processes the kernel killed for want of memory."""
        (file,) = (each for each in ("memory.oom_control", "memory.events") if (self.folder / each).exists())
        found = re.search(r"^oom_kill (\d+)$", (self.folder / file).read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Make a group whose processes may take so much memory together; skip the test where none can be made."""
    own = {
        controllers: path.strip("/")
        for _, controllers, path in (line.split(":", 2) for line in _lines("/proc/self/cgroup"))
    }
    above = _ROOT / "memory" / own["memory"] if "memory" in own else _ROOT / own.get("", "")
    folder = above / f"slipway-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if "memory" in own else "memory.max"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(limit_bytes))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"needs a control group of its own with a memory limit: {error}")
    group = MemoryGroup(folder, above)
    try:
        yield group
    finally:
        for pid in _lines(folder / "cgroup.procs"):
            with contextlib.suppress(OSError):
                (above / "cgroup.procs").write_text(pid)
        folder.rmdir()


def _lines(path: str | Path) -> list[str]:
    return Path(path).read_text().splitlines()
