"""What a model's process keeps outside of itself while it lives, so that its death can be made good.

Each process of an instance has a folder below the server's private one: how many requests it works on, and an
empty file for each session that it holds. It holds a lock there too, which its end, however it comes, lets
go. So the server knows at any time what is under way (:func:`under_way`), and the process that comes next
for the model takes over what a dead one left: requests that no longer run leave the gauge, and its sessions
are known as lost (:meth:`Footprint.inherit`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "SLIPWAY_FOOTPRINTS"
"""Environment variable of a server's processes: the folder of their footprints."""
_LIFE = "life"
_LOST = "lost"
_RESTARTS = ".restarts"
# Whether the model is a pipeline, how many requests it works on, and whether it was told to end.
_WORK = struct.Struct("<III")


@dataclass(frozen=True)
class Work:
    """What a living process does.

    Attributes:
        pid: its process id.
        pipeline: whether its model works by calling others.
        requests: how many it works on.
        ending: whether Triton has told it to end.
    """

    pid: int
    pipeline: bool
    requests: int
    ending: bool = False


class Footprint:
    """The footprint of this process as an instance of a model.

    Args:
        folder: of all footprints of the server; None where nobody looks at them: then nothing is kept.
        model: the served model's name.
    """

    def __init__(self, folder: Path | None, model: str) -> None:
        self._all, self._requests, self._pipeline, self._ending = folder, 0, False, False
        if folder is None:
            return
        self._model = folder / model
        self._model.mkdir(parents=True, exist_ok=True)
        self._own = self._model / f"{os.getpid()}-{secrets.token_hex(4)}"
        unseen = self._own.with_name(f".{self._own.name}")
        unseen.mkdir()
        # Held until the process ends; locked before anyone can see it.
        self._life = (unseen / _LIFE).open("w+b", buffering=0)
        fcntl.flock(self._life, fcntl.LOCK_EX)
        self._life.write(_WORK.pack(False, 0, False))
        self._work = mmap.mmap(self._life.fileno(), _WORK.size)
        unseen.rename(self._own)

    @classmethod
    def from_environment(cls, model: str) -> Footprint:
        """Begin the footprint of an instance of a model where the server that started it says."""
        folder = os.environ.get(FOLDER_VARIABLE)
        return cls(Path(folder) if folder else None, model)

    def inherit(self) -> int:
        """Take over what dead processes of the model left, their sessions as lost ones.

        Returns:
            How many requests they worked on.
        """
        if self._all is None:
            return 0
        left = 0
        for place in _places(self._model):
            with contextlib.suppress(OSError), (place / _LIFE).open("rb") as life:
                if _is_held(life.fileno()):
                    continue
                left += _WORK.unpack(life.read(_WORK.size))[1]
                (self._model / _LOST).mkdir(exist_ok=True)
                for session in place.iterdir():
                    if session.name != _LIFE:
                        session.rename(self._model / _LOST / session.name)
                shutil.rmtree(place)
        return left

    def is_pipeline(self) -> None:
        """Take note that the model works by calling others: a server that is stopped waits for it."""
        self._pipeline = True
        self.add(0)

    def add(self, requests: int) -> None:
        """Count requests that began, or, below 0, ended."""
        self._requests += requests
        if self._all is not None:
            _WORK.pack_into(self._work, 0, self._pipeline, self._requests, self._ending)

    def is_ending(self) -> None:
        """Take note that Triton has told this process to end."""
        self._ending = True
        self.add(0)

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
        if self._all is not None:
            (self._own / _name(session_id)).touch()
            self.forget(session_id)

    def session_ended(self, session_id: object) -> None:
        """Take note that this process no longer holds a session, which is as it should be."""
        if self._all is not None:
            (self._own / _name(session_id)).unlink(missing_ok=True)

    def has_lost(self, session_id: object) -> bool:
        """Return whether another process of the model, which no longer gets its turns, held a session."""
        if self._all is None:
            return False
        others = (place for place in _places(self._model) if place != self._own)
        return any((place / _name(session_id)).exists() for place in (self._model / _LOST, *others))

    def forget(self, session_id: object) -> None:
        """Take note that nobody will ask for a lost session again."""
        if self._all is not None:
            (self._model / _LOST / _name(session_id)).unlink(missing_ok=True)

    def restarts(self) -> tuple[int, int]:
        """Return how often the model was started anew by itself, and how often the whole server."""
        if self._all is None:
            return 0, 0
        return _count(self._model), _count(self._all)


NO_FOOTPRINT = Footprint(None, "")
"""That of a process which nobody looks at."""


def count_restart(folder: Path, model: str = "") -> int:
    """Count that a model, or the server, is started anew because it died; return how often by now.

    Args:
        folder: of the server's footprints.
        model: its name; "" for the server.
    """
    place = folder / model
    place.mkdir(parents=True, exist_ok=True)
    count = _count(place) + 1
    (place / _RESTARTS).write_text(str(count))
    return count


def under_way(folder: Path) -> list[Work]:
    """Return what each living process of the server's models does."""
    found = []
    for place in (place for model in folder.glob("*/") for place in _places(model)):
        with contextlib.suppress(OSError), (place / _LIFE).open("rb") as life:
            pipeline, requests, ending = _WORK.unpack(life.read(_WORK.size))
            if _is_held(life.fileno()):
                pid = int(place.name.partition("-")[0])
                found.append(Work(pid, bool(pipeline), requests, bool(ending)))
    return found


def _places(model: Path) -> Iterator[Path]:
    """Yield the folders of the processes of a model."""
    return (place for place in model.glob("[0-9]*-*/") if place.is_dir())


def _is_held(life: int) -> bool:
    """Return whether the process of a lock lives; where not, the lock is ours until the file is closed."""
    try:
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _name(session_id: object) -> str:
    # A caller's text never becomes a path; 7 and "7" are two sessions.
    return hashlib.sha256(repr(session_id).encode()).hexdigest()


def _count(place: Path) -> int:
    file = place / _RESTARTS
    return int(file.read_text()) if file.exists() else 0
