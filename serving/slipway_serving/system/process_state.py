"""Per-process state files that let the supervisor detect a dead model process and clean up after it.

Triton 2.51 does not watch the processes of its Python models: if one is killed, its model and the server stay
ready for ever while requests fail. So each process has a folder below the server's folder
(:mod:`slipway_serving.system.server_folder`), named after the process and the instance. It holds the number
of running requests, the stage of the process, and an empty file for each open session. Any process can read
which processes died (:func:`lost`) and which requests run (:func:`under_way`) without sending a request,
which would mistake a busy model for a dead one. The next process of the model takes over the state of a dead
one (:func:`inherit`): it removes the requests that died from the gauge and records the sessions as lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import signal
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.private_files import make_folder
from slipway_serving.system.server_folder import folder_here

_FOLDER = "footprints"
_WORK = "work"
_LOST = "lost"
_RESTARTS = ".restarts"
# The values are: 1 if the model is a pipeline, the number of running requests, and the stage.
_VALUES = struct.Struct("<III")


class Stage(IntEnum):
    """Stage in the life of a model's process."""

    STARTS = 0
    SERVES = 1
    ENDS = 2


@dataclass(frozen=True)
class Work:
    """Last recorded state of a living or dead process.

    Attributes:
        pid: Process id.
        pipeline: True if the model is a pipeline, which calls other models.
        requests: Number of running requests.
        stage: Stage of the process; `ENDS` if Triton has told it to end.
    """

    pid: int
    pipeline: bool
    requests: int
    stage: Stage


class Footprint:
    """State files of this process, which is one instance of a model.

    Args:
        folder: The server's runtime folder; None writes no files.
        model: Name of the served model.
        instance: Name of the instance from Triton, unique on the server and kept by the next process.
    """

    def __init__(self, folder: Path | None, model: str, instance: str) -> None:
        self._folder, self._name = folder, model
        self._requests, self._pipeline, self._stage = 0, False, Stage.STARTS
        if folder is None:
            return
        make_folder(folder)
        self._model = folder / _FOLDER / model
        self._model.mkdir(parents=True, exist_ok=True)
        self._own = self._model / f"{_told(os.getpid())}-{instance}"
        unseen = self._own.with_name(f".{self._own.name}")
        unseen.mkdir()
        with (unseen / _WORK).open("w+b", buffering=0) as file:
            file.write(_VALUES.pack(False, 0, Stage.STARTS))
            self._work = mmap.mmap(file.fileno(), _VALUES.size)
        unseen.rename(self._own)

    @classmethod
    def of_instance(cls, args: Mapping[str, str]) -> Footprint:
        """Create the state files of an instance from the arguments of Triton's Python backend."""
        return cls(folder_here(), args["model_name"], args["model_instance_name"])

    @property
    def is_serving(self) -> bool:
        """True if this process takes requests."""
        return self._stage is Stage.SERVES

    def serves(self, *, pipeline: bool = False) -> int:
        """Record that this process takes requests now, and take over the state of dead processes.

        Args:
            pipeline: True if the model is a pipeline, which calls other models; a drain waits for it.

        Returns:
            The number of requests that the dead processes worked on.
        """
        self._pipeline, self._stage = pipeline, Stage.SERVES
        self.add(0)
        return inherit(self._folder, self._name) if self._folder is not None else 0

    def ends(self) -> None:
        """Record that Triton has told this process to end."""
        self._stage = Stage.ENDS
        self.add(0)

    def add(self, requests: int) -> None:
        """Add a number of started requests; a negative number counts ended ones."""
        self._requests += requests
        if self._folder is not None:
            _VALUES.pack_into(self._work, 0, self._pipeline, self._requests, self._stage)

    @contextlib.contextmanager
    def working(self, requests: int) -> Iterator[None]:
        """Count requests as running until the block ends."""
        self.add(requests)
        try:
            yield
        finally:
            self.add(-requests)

    def session_began(self, session_id: object) -> None:
        """Record that this process holds a session."""
        if self._folder is not None:
            (self._own / _file_of(session_id)).touch()
            self.forget(session_id)

    def session_ended(self, session_id: object) -> None:
        """Record that a session of this process ended normally."""
        if self._folder is not None:
            (self._own / _file_of(session_id)).unlink(missing_ok=True)

    def has_lost(self, session_id: object) -> bool:
        """Return True if another process of the model, which no longer gets its turns, held a session."""
        if self._folder is None:
            return False
        others = (place for place in _places(self._model) if place != self._own)
        return any((place / _file_of(session_id)).exists() for place in (self._model / _LOST, *others))

    def forget(self, session_id: object) -> None:
        """Delete the record of a lost session that no caller will ask for again."""
        if self._folder is not None:
            (self._model / _LOST / _file_of(session_id)).unlink(missing_ok=True)

    def restarts(self) -> tuple[int, int]:
        """Return the number of restarts of the model alone and of the whole server."""
        if self._folder is None:
            return 0, 0
        return _count(self._model), _count(self._folder / _FOLDER)


NO_FOOTPRINT = Footprint(None, "", "")
"""Footprint of a process that keeps no state files."""


def count_restart(folder: Path, model: str = "") -> int:
    """Count a restart of a model or of the server after it died, and return the new count.

    If the count cannot be written, the file keeps the old count, so that the restart does not fail.

    Args:
        folder: The server's runtime folder.
        model: Name of the model; "" for the server.
    """
    place = folder / _FOLDER / model
    count = _count(place) + 1
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        unseen = place / f"{_RESTARTS}.new"
        unseen.write_text(str(count))
        unseen.replace(place / _RESTARTS)
    return count


def under_way(folder: Path) -> list[Work]:
    """Return the state of each living process of a server's models.

    Args:
        folder: The server's runtime folder.
    """
    return [work for place in _all_places(folder) if _lives(place) and (work := _work(place))]


def lost(folder: Path) -> list[str]:
    """Return the names of serving instances whose processes died without being told to end.

    Args:
        folder: The server's runtime folder.
    """
    gone = [place for place in _all_places(folder) if not _lives(place)]
    found = {place.name.split("-", 2)[2]: _work(place) for place in gone}
    return sorted(name for name, work in found.items() if work is not None and work.stage is Stage.SERVES)


def check_processes(pid: int, folder: Path) -> None:
    """Check those processes of a server that Triton itself does not watch.

    Args:
        pid: Process id of `tritonserver`.
        folder: The server's runtime folder.

    Raises:
        NotReady: `tritonserver` is dying, or a Python model lacks its process.
    """
    from slipway_serving.system.server_processes import (
        dies_of,  # It needs psutil, which model processes do without.
    )

    if number := dies_of(pid):
        raise NotReady(
            f"ready: tritonserver must live, got one that dies of {number.name}, if it ends at all;"
            " try the server's log, and a restart of it"
        )
    if gone := lost(folder):
        raise NotReady(
            f"ready: every model must have its processes, got none any more of {', '.join(gone)};"
            " try the server's log, and a restart of it"
        )


def end(folder: Path, pid: int) -> None:
    """Kill a process of a server's models and mark it as ended, so that :func:`lost` does not report it.

    Args:
        folder: The server's runtime folder.
        pid: Process id of a process without running requests.
    """
    for place in _all_places(folder):
        if _lives(place) and (work := _work(place)) and work.pid == pid:
            with (place / _WORK).open("r+b") as file:  # A write in place works on a full disk too.
                file.write(_VALUES.pack(work.pipeline, 0, Stage.ENDS))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def inherit(folder: Path, model: str) -> int:
    """Take over the state files of a model's dead processes, and record their sessions as lost.

    Args:
        folder: The server's runtime folder.
        model: Name of the model.

    Returns:
        The number of requests that the dead processes worked on.
    """
    left = 0
    for place in _places(folder / _FOLDER / model):
        if _lives(place):
            continue
        sessions = place.parent / _LOST
        sessions.mkdir(exist_ok=True)
        # Several processes may do this at once: each file and folder goes to one of them.
        with contextlib.suppress(FileNotFoundError):
            for session in place.iterdir():
                if session.name != _WORK:
                    session.rename(sessions / session.name)
            taken = place.rename(place.with_name(f".{place.name}"))
            left += work.requests if (work := _work(taken)) else 0
            shutil.rmtree(taken)
    return left


def _all_places(folder: Path) -> Iterator[Path]:
    """Yield the process folders of all models of a server."""
    return (place for model in (folder / _FOLDER).glob("*/") for place in _places(model))


def _places(model: Path) -> Iterator[Path]:
    """Yield the process folders of a model."""
    return (place for place in model.glob("[0-9]*-*/") if place.is_dir())


def _work(place: Path) -> Work | None:
    """Read the state of a process; return None if another process is just taking over its folder."""
    try:
        pipeline, requests, stage = _VALUES.unpack((place / _WORK).read_bytes())
    except FileNotFoundError:
        return None
    return Work(int(place.name.lstrip(".").partition("-")[0]), bool(pipeline), requests, Stage(stage))


def _lives(place: Path) -> bool:
    pid, started, _ = place.name.split("-", 2)
    return _told(int(pid)) == f"{pid}-{started}"


def _told(pid: int) -> str | None:
    """Return a living process's id and start time as text, since process ids are reused; None if dead."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A killed process stays a zombie, since Triton does not wait for it.
    return None if state in "ZX" else f"{pid}-{rest[18]}"


def _file_of(session_id: object) -> str:
    # The hash keeps a caller's text out of the path; repr keeps 7 and "7" apart, which are two sessions.
    return hashlib.sha256(repr(session_id).encode()).hexdigest()


def _count(place: Path) -> int:
    file = place / _RESTARTS
    return int(file.read_text()) if file.exists() else 0
