"""What a model's process keeps outside of itself while it lives, so that its death is known and made good.

Triton 2.51 does not look after the processes of its Python models: one that was killed leaves its model, and
the server, ready for ever while requests fail. So each has a folder below the server's
(:mod:`slipway_serving.server_folder`), whose name says which process and which instance it is: how many
requests it works on, how far it has come, and an empty file for each session that it holds. So anybody knows
at any time which processes are gone that should be there (:func:`lost`) and what is under way
(:func:`under_way`), without a request, by which a busy model would be taken for a dead one. The process that
comes next for the model takes over what a dead one left (:func:`inherit`): requests that no longer run leave
the gauge, and its sessions are known as lost.
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

from slipway_serving.errors import NotReady
from slipway_serving.private_files import make_folder
from slipway_serving.server_folder import folder_here

_FOLDER = "footprints"
_WORK = "work"
_LOST = "lost"
_RESTARTS = ".restarts"
# Whether the model is a pipeline, how many requests it works on, and its stage.
_VALUES = struct.Struct("<III")


class Stage(IntEnum):
    """How far a process has come."""

    STARTS = 0
    SERVES = 1
    ENDS = 2


@dataclass(frozen=True)
class Work:
    """What a process does, or did when it died.

    Attributes:
        pid: its process id.
        pipeline: whether its model works by calling others.
        requests: how many it works on.
        stage: how far it has come; the last one when Triton has told it to end.
    """

    pid: int
    pipeline: bool
    requests: int
    stage: Stage


class Footprint:
    """The footprint of this process as an instance of a model.

    Args:
        folder: of the server; None where nobody looks: then nothing is kept.
        model: the served model's name.
        instance: its name, as Triton gives it: unique on the server, and the same for its successor.
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
        """Begin the footprint of an instance, of which Triton's Python backend has told the arguments."""
        return cls(folder_here(), args["model_name"], args["model_instance_name"])

    @property
    def is_serving(self) -> bool:
        """Whether this process takes requests."""
        return self._stage is Stage.SERVES

    def serves(self, *, pipeline: bool = False) -> int:
        """Take note that this process takes requests now, in the place of one that died.

        Args:
            pipeline: whether the model works by calling others: a server that is stopped waits for it.

        Returns:
            How many requests the dead ones worked on.
        """
        self._pipeline, self._stage = pipeline, Stage.SERVES
        self.add(0)
        return inherit(self._folder, self._name) if self._folder is not None else 0

    def ends(self) -> None:
        """Take note that Triton has told this process to end."""
        self._stage = Stage.ENDS
        self.add(0)

    def add(self, requests: int) -> None:
        """Count requests that began, or, below 0, ended."""
        self._requests += requests
        if self._folder is not None:
            _VALUES.pack_into(self._work, 0, self._pipeline, self._requests, self._stage)

    @contextlib.contextmanager
    def working(self, requests: int) -> Iterator[None]:
        """Count requests as worked on until the block ends."""
        self.add(requests)
        try:
            yield
        finally:
            self.add(-requests)

    def session_began(self, session_id: object) -> None:
        """Take note that this process holds a session."""
        if self._folder is not None:
            (self._own / _file_of(session_id)).touch()
            self.forget(session_id)

    def session_ended(self, session_id: object) -> None:
        """Take note that this process no longer holds a session, which is as it should be."""
        if self._folder is not None:
            (self._own / _file_of(session_id)).unlink(missing_ok=True)

    def has_lost(self, session_id: object) -> bool:
        """Return whether another process of the model, which no longer gets its turns, held a session."""
        if self._folder is None:
            return False
        others = (place for place in _places(self._model) if place != self._own)
        return any((place / _file_of(session_id)).exists() for place in (self._model / _LOST, *others))

    def forget(self, session_id: object) -> None:
        """Take note that nobody will ask for a lost session again."""
        if self._folder is not None:
            (self._model / _LOST / _file_of(session_id)).unlink(missing_ok=True)

    def restarts(self) -> tuple[int, int]:
        """Return how often the model was started anew by itself, and how often the whole server."""
        if self._folder is None:
            return 0, 0
        return _count(self._model), _count(self._folder / _FOLDER)


NO_FOOTPRINT = Footprint(None, "", "")
"""That of a process which nobody looks at."""


def count_restart(folder: Path, model: str = "") -> int:
    """Count that a model, or the server, is started anew because it died; return how often by now.

    A count that cannot be written stays as it was: what died is started anew all the same.

    Args:
        folder: of the server.
        model: its name; "" for the server.
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
    """Return what each living process of a server's models does.

    Args:
        folder: of the server.
    """
    return [work for place in _all_places(folder) if _lives(place) and (work := _work(place))]


def lost(folder: Path) -> list[str]:
    """Return the names of the instances whose processes are gone without having been told to.

    Args:
        folder: of the server.
    """
    gone = [place for place in _all_places(folder) if not _lives(place)]
    found = {place.name.split("-", 2)[2]: _work(place) for place in gone}
    return sorted(name for name, work in found.items() if work is not None and work.stage is Stage.SERVES)


def check_processes(pid: int, folder: Path) -> None:
    """Check the processes of a server that Triton itself does not watch.

    Args:
        pid: Process id of `tritonserver`.
        folder: Folder of the server.

    Raises:
        NotReady: `tritonserver` is dying, or a Python model lacks its process.
    """
    from slipway_serving.triton_process import dies_of  # needs psutil, which the stubs do without

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
    """Kill a process of a server's models, which is not lost then.

    Args:
        folder: of the server.
        pid: of one that has no work.
    """
    for place in _all_places(folder):
        if _lives(place) and (work := _work(place)) and work.pid == pid:
            with (place / _WORK).open("r+b") as file:  # in place, which a full disk allows
                file.write(_VALUES.pack(work.pipeline, 0, Stage.ENDS))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def inherit(folder: Path, model: str) -> int:
    """Take over what dead processes of a model left, their sessions as lost ones.

    Args:
        folder: of the server.
        model: its name.

    Returns:
        How many requests they worked on.
    """
    left = 0
    for place in _places(folder / _FOLDER / model):
        if _lives(place):
            continue
        sessions = place.parent / _LOST
        sessions.mkdir(exist_ok=True)
        # Of several heirs, one takes each of these.
        with contextlib.suppress(FileNotFoundError):
            for session in place.iterdir():
                if session.name != _WORK:
                    session.rename(sessions / session.name)
            taken = place.rename(place.with_name(f".{place.name}"))
            left += work.requests if (work := _work(taken)) else 0
            shutil.rmtree(taken)
    return left


def _all_places(folder: Path) -> Iterator[Path]:
    """Yield the folders of the processes of all of a server's models."""
    return (place for model in (folder / _FOLDER).glob("*/") for place in _places(model))


def _places(model: Path) -> Iterator[Path]:
    """Yield the folders of the processes of a model."""
    return (place for place in model.glob("[0-9]*-*/") if place.is_dir())


def _work(place: Path) -> Work | None:
    """Return what a process does; None where its folder is just being taken over."""
    try:
        pipeline, requests, stage = _VALUES.unpack((place / _WORK).read_bytes())
    except FileNotFoundError:
        return None
    return Work(int(place.name.lstrip(".").partition("-")[0]), bool(pipeline), requests, Stage(stage))


def _lives(place: Path) -> bool:
    pid, started, _ = place.name.split("-", 2)
    return _told(int(pid)) == f"{pid}-{started}"


def _told(pid: int) -> str | None:
    """Return a living process with the time at which it started, since numbers come again."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A killed one stays as a zombie, since Triton does not ask how it ended.
    return None if state in "ZX" else f"{pid}-{rest[18]}"


def _file_of(session_id: object) -> str:
    # A caller's text never becomes a path; 7 and "7" are two sessions.
    return hashlib.sha256(repr(session_id).encode()).hexdigest()


def _count(place: Path) -> int:
    file = place / _RESTARTS
    return int(file.read_text()) if file.exists() else 0
