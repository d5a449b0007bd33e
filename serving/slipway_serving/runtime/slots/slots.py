"""Slots of a pipeline, shared by its processes through files in the server's folder.

Each request has a small file that says what it waits for; a lock makes each look at all files and each change
one action. The file of a process that died does not count, so a killed process frees its slot.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from slipway_serving.runtime.program import Settings
from slipway_serving.runtime.slots.order import Entry, giving_way, starting
from slipway_serving.system.process_state import NO_PROCESS_STATE, process_identity
from slipway_serving.system.server_folder import runtime_folder

SLOTS_PARAMETER = "concurrent_requests"
"""Parameter of a pipeline's `config.pbtxt`: number of requests that all of its instances work on at a time.
Further instances hold waiting requests, among which the priority decides."""
AGING_PARAMETER = "priority_aging_s"
"""Parameter of a pipeline's `config.pbtxt`: seconds of waiting that raise a request by one priority."""
AGING_S = 60

_FOLDER = "slots"
_INSTANCE_NUMBER = re.compile(r"_(\d+)$")
_LOCK = ".lock"
_NUMBERS = itertools.count()


class Slots:
    """Slots of one pipeline.

    Args:
        folder: Folder of the pipeline's files, in the server's runtime folder; None outside of a server,
            where every request has a slot.
        count: Number of slots; None if every instance is one.
        aging_s: Time of waiting that raises a request by one priority, in seconds.
    """

    def __init__(self, folder: Path | None, count: int | None, aging_s: float = AGING_S) -> None:
        self._folder, self._count, self._aging_s = folder, count, aging_s
        if folder is not None and count is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @classmethod
    def from_settings(cls, settings: Settings) -> Slots:
        """Return the slots of a pipeline from the parameters of its config.

        Raises:
            InvalidRequest: A parameter is not a whole number above 0.
        """
        wanted = SLOTS_PARAMETER in settings.parameters
        count = settings.positive_integer(SLOTS_PARAMETER) if wanted else None
        aging = AGING_PARAMETER in settings.parameters
        aging_s = settings.positive_integer(AGING_PARAMETER) if aging else AGING_S
        folder = None
        if settings.process_state is not NO_PROCESS_STATE:
            folder = runtime_folder() / _FOLDER / settings.model
        return cls(folder, count, aging_s)

    def count_waiting(self) -> int:
        """Return how many requests of all processes wait for a slot or are set aside."""
        if self._folder is None or self._count is None:
            return 0
        with _locked_entries(self._folder) as entries:
            return sum(entry.waiting_since_s is not None for entry in entries)

    @contextlib.contextmanager
    def enter(self, priority: int, *, can_stop: bool = True) -> Iterator[Slot]:
        """Register a request, which first waits for a slot, until the block ends.

        Args:
            priority: Number of the priority, 0 for the most urgent.
            can_stop: True if the request can be set aside.
        """
        if self._folder is None or self._count is None:
            yield Slot(None, None, 1, self._aging_s)
            return
        name = f"{process_identity(os.getpid())}-{next(_NUMBERS)}"
        now_s = time.time()
        slot = Slot(
            self._folder, Entry(name, priority, now_s, now_s, can_stop=can_stop), self._count, self._aging_s
        )
        try:
            yield slot
        finally:
            slot.leave()


class Slot:
    """Slot of one request, or its turn to get one.

    Args:
        folder: Folder of the pipeline's files; None if the request has its slot from the beginning.
        entry: Entry of the request.
        count: Number of slots.
        aging_s: Time of waiting that raises a request by one priority, in seconds.
    """

    def __init__(self, folder: Path | None, entry: Entry | None, count: int, aging_s: float) -> None:
        self._folder, self._entry, self._count, self._aging_s = folder, entry, count, aging_s
        self._write()

    @property
    def set_aside_count(self) -> int:
        """Number of times that the request was set aside."""
        return 0 if self._entry is None else self._entry.set_aside

    def take(self) -> bool:
        """Take a slot if it is this request's turn; return True if the request has one."""
        if self._folder is None or self._entry is None or self._entry.waiting_since_s is None:
            return True
        with _locked_entries(self._folder) as entries:
            chosen = starting(entries, self._count, time.time(), self._aging_s)
            if self._entry.name not in {entry.name for entry in chosen}:
                return False
            self._entry = replace(self._entry, waiting_since_s=None)
            self._write()
        return True

    def must_give_way(self) -> bool:
        """Return True if a more urgent request waits for the slot of this one."""
        if self._folder is None or self._entry is None:
            return False
        with _locked_entries(self._folder) as entries:
            chosen = giving_way(entries, self._count, time.time(), self._aging_s)
        return self._entry.name in {entry.name for entry in chosen}

    def give_way(self) -> None:
        """Give up the slot and wait for another one."""
        if self._entry is not None:
            waiting = replace(self._entry, waiting_since_s=time.time(), set_aside=self._entry.set_aside + 1)
            self._entry = waiting
            self._write()

    def leave(self) -> None:
        """Free the slot."""
        if self._folder is not None and self._entry is not None:
            (self._folder / self._entry.name).unlink(missing_ok=True)

    def _write(self) -> None:
        if self._folder is None or self._entry is None:
            return
        hidden = self._folder / f".{self._entry.name}"
        hidden.write_text(json.dumps(asdict(self._entry)), encoding="utf-8")
        hidden.replace(self._folder / self._entry.name)


@contextlib.contextmanager
def _locked_entries(folder: Path) -> Iterator[list[Entry]]:
    """Read the requests of all living processes, and keep others from a change until the block ends."""
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield [entry for path in folder.glob("[0-9]*") if (entry := _read(path)) is not None]


def is_spare(settings: Settings, instance: str) -> bool:
    """Return True if an instance is one more than the pipeline has slots, so that most requests wait there.

    Such an instance builds its program at its first request: the libraries of a pipeline take 3 s of a core
    and 0.2 GB of memory, which a server would otherwise spend on each instance before it is ready.

    Args:
        settings: Settings of the pipeline.
        instance: Name of the instance from Triton, which ends in its number.

    Raises:
        InvalidRequest: The number of slots is not a whole number above 0.
    """
    number = _INSTANCE_NUMBER.search(instance)
    if number is None or SLOTS_PARAMETER not in settings.parameters:
        return False
    return int(number[1]) >= settings.positive_integer(SLOTS_PARAMETER)


def _read(path: Path) -> Entry | None:
    """Read an entry; return None, and remove the file, if its process has died."""
    pid, started, _ = path.name.split("-", 2)
    if process_identity(int(pid)) != f"{pid}-{started}":
        path.unlink(missing_ok=True)
        return None
    try:
        return Entry(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:  # The request has ended meanwhile.
        return None
