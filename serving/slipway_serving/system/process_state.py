"""Per-process state files that let the supervisor detect a dead model process and clean up after it.

Triton 2.51 does not watch the processes of its Python models: if one is killed, its model and the server stay
ready for ever while requests fail. So each process has a folder below the server's folder
(:mod:`slipway_serving.system.server_folder`), named after the process and the instance. It holds the number
of running requests, the stage of the process, and an empty file for each open session. Any process can read
which processes died (:func:`dead_instances`) and which requests run (:func:`running_work`) without sending a
request, which would mistake a busy model for a dead one. The next process of the model takes over the state
of a dead one (:func:`take_over`): it removes the requests that died from the gauge and records the sessions
as lost.

The process of a model that is not written with this package has no such folder. Only the supervisor notices
its death, and reports the model until it has been reloaded (:func:`reloading`).
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
from slipway_serving.system.server_folder import runtime_folder

_STATES = "footprints"
_WORK_FILE = "work"
_LOST_SESSIONS = "lost"
_RESTARTS_FILE = ".restarts"
_RELOADS_FILE = ".reloads"
# The values are: 1 if the model is a pipeline, the number of running requests, and the stage.
_WORK_FORMAT = struct.Struct("<III")


class ProcessStage(IntEnum):
    """Stage in the life of a model's process."""

    STARTING = 0
    SERVING = 1
    ENDING = 2


@dataclass(frozen=True)
class RunningWork:
    """Last recorded state of a living or dead process.

    Attributes:
        pid: Process id.
        is_pipeline: True if the model is a pipeline, which calls other models.
        requests: Number of running requests.
        stage: Stage of the process; `ENDING` if Triton has told it to end.
        sessions: Number of open sessions.
    """

    pid: int
    is_pipeline: bool
    requests: int
    stage: ProcessStage
    sessions: int = 0


class ProcessState:
    """State files of this process, which is one instance of a model.

    Args:
        folder: The server's runtime folder; None writes no files.
        model: Name of the served model.
        instance: Name of the instance from Triton, unique on the server and kept by the next process.
    """

    def __init__(self, folder: Path | None, model: str, instance: str) -> None:
        self._folder, self._model = folder, model
        self._requests, self._is_pipeline, self._stage = 0, False, ProcessStage.STARTING
        if folder is None:
            return
        make_folder(folder)
        self._model_folder = folder / _STATES / model
        self._model_folder.mkdir(parents=True, exist_ok=True)
        self._process_folder = self._model_folder / f"{process_identity(os.getpid())}-{instance}"
        # Other processes ignore a hidden folder, so they never see one without its file.
        hidden = self._process_folder.with_name(f".{self._process_folder.name}")
        hidden.mkdir()
        with (hidden / _WORK_FILE).open("w+b", buffering=0) as file:
            file.write(_WORK_FORMAT.pack(False, 0, ProcessStage.STARTING))
            self._work_memory = mmap.mmap(file.fileno(), _WORK_FORMAT.size)
        hidden.rename(self._process_folder)

    @classmethod
    def for_instance(cls, args: Mapping[str, str]) -> ProcessState:
        """Create the state files of an instance from the arguments of Triton's Python backend."""
        return cls(runtime_folder(), args["model_name"], args["model_instance_name"])

    @property
    def is_serving(self) -> bool:
        """True if this process takes requests."""
        return self._stage is ProcessStage.SERVING

    def record_serving(self, *, is_pipeline: bool = False) -> int:
        """Record that this process takes requests now, and take over the state of dead processes.

        Args:
            is_pipeline: True if the model is a pipeline, which calls other models; a drain waits for it.

        Returns:
            The number of requests that the dead processes worked on.
        """
        self._is_pipeline, self._stage = is_pipeline, ProcessStage.SERVING
        self._add_requests(0)
        return take_over(self._folder, self._model) if self._folder is not None else 0

    def record_ending(self) -> None:
        """Record that Triton has told this process to end."""
        self._stage = ProcessStage.ENDING
        self._add_requests(0)

    def _add_requests(self, requests: int) -> None:
        """Add a number of started requests; a negative number counts ended ones."""
        self._requests += requests
        if self._folder is not None:
            _WORK_FORMAT.pack_into(self._work_memory, 0, self._is_pipeline, self._requests, self._stage)

    @contextlib.contextmanager
    def count_requests(self, requests: int) -> Iterator[None]:
        """Count requests as running until the block ends."""
        self._add_requests(requests)
        try:
            yield
        finally:
            self._add_requests(-requests)

    def record_session(self, session_id: object) -> None:
        """Record that this process holds a session."""
        if self._folder is not None:
            (self._process_folder / _session_file(session_id)).touch()
            self.forget_session(session_id)

    def remove_session(self, session_id: object) -> None:
        """Record that a session of this process ended normally."""
        if self._folder is not None:
            (self._process_folder / _session_file(session_id)).unlink(missing_ok=True)

    def has_lost_session(self, session_id: object) -> bool:
        """Return True if another process of the model, which no longer gets its turns, held a session."""
        if self._folder is None:
            return False
        others = (folder for folder in _process_folders(self._model_folder) if folder != self._process_folder)
        folders = (self._model_folder / _LOST_SESSIONS, *others)
        return any((folder / _session_file(session_id)).exists() for folder in folders)

    def forget_session(self, session_id: object) -> None:
        """Delete the record of a lost session that no caller will ask for again."""
        if self._folder is not None:
            (self._model_folder / _LOST_SESSIONS / _session_file(session_id)).unlink(missing_ok=True)

    def restart_counts(self) -> tuple[int, int]:
        """Return the number of restarts of the model alone and of the whole server."""
        if self._folder is None:
            return 0, 0
        return _read_restarts(self._model_folder), _read_restarts(self._folder / _STATES)


NO_PROCESS_STATE = ProcessState(None, "", "")
"""State of a process that keeps no state files."""


def count_restart(folder: Path, model: str = "") -> int:
    """Count a restart of a model or of the server after it died, and return the new count.

    If the count cannot be written, the file keeps the old count, so that the restart does not fail.

    Args:
        folder: The server's runtime folder.
        model: Name of the model; "" for the server.
    """
    parent = folder / _STATES / model
    count = _read_restarts(parent) + 1
    with contextlib.suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
        new_file = parent / f"{_RESTARTS_FILE}.new"
        new_file.write_text(str(count))
        new_file.replace(parent / _RESTARTS_FILE)
    return count


@contextlib.contextmanager
def reloading(folder: Path, model: str) -> Iterator[None]:
    """Report a model to :func:`check_processes` until the block ends.

    Args:
        folder: The server's runtime folder.
        model: Name of a model that is reloaded because its process died.
    """
    mark = folder / _STATES / model / _RELOADS_FILE
    with contextlib.suppress(OSError):  # The model must be reloaded on a full disk too.
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            mark.unlink()


def running_work(folder: Path) -> list[RunningWork]:
    """Return the state of each living process of a server's models.

    Args:
        folder: The server's runtime folder.
    """
    folders = filter(_is_alive, _all_process_folders(folder))
    return [work for process_folder in folders if (work := _read_work(process_folder))]


def dead_instances(folder: Path) -> list[str]:
    """Return the names of serving instances whose processes died without being told to end.

    Args:
        folder: The server's runtime folder.
    """
    dead = [process for process in _all_process_folders(folder) if not _is_alive(process)]
    works = {process.name.split("-", 2)[2]: _read_work(process) for process in dead}
    return sorted(name for name, work in works.items() if work and work.stage is ProcessStage.SERVING)


def check_processes(pid: int, folder: Path) -> None:
    """Check those processes of a server that Triton itself does not watch.

    Args:
        pid: Process id of `tritonserver`.
        folder: The server's runtime folder.

    Raises:
        NotReady: `tritonserver` is dying, or a Python model lacks its process.
    """
    # This module needs psutil, which the processes of models do not import.
    from slipway_serving.system.server_processes import crash_signal

    if number := crash_signal(pid):
        raise NotReady(
            f"ready: tritonserver is crashing ({number.name}) and may never exit; see the server's log and"
            " restart the server"
        )
    if dead := dead_instances(folder) or _reloading_models(folder):
        raise NotReady(
            f"ready: the process of {', '.join(dead)} has died; see the server's log and restart the server"
        )


def end_process(folder: Path, pid: int) -> None:
    """Kill a process of a server's models; it is marked as ended, so :func:`dead_instances` omits it.

    Args:
        folder: The server's runtime folder.
        pid: Process id of a process without running requests.
    """
    for process_folder in _all_process_folders(folder):
        if _is_alive(process_folder) and (work := _read_work(process_folder)) and work.pid == pid:
            with (process_folder / _WORK_FILE).open(
                "r+b"
            ) as file:  # A write in place works on a full disk too.
                file.write(_WORK_FORMAT.pack(work.is_pipeline, 0, ProcessStage.ENDING))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def take_over(folder: Path, model: str) -> int:
    """Take over the state files of a model's dead processes, and record their sessions as lost.

    Args:
        folder: The server's runtime folder.
        model: Name of the model.

    Returns:
        The number of requests that the dead processes worked on.
    """
    unfinished = 0
    for process_folder in _process_folders(folder / _STATES / model):
        if _is_alive(process_folder):
            continue
        sessions = process_folder.parent / _LOST_SESSIONS
        sessions.mkdir(exist_ok=True)
        # Several processes may do this at once: each file and folder goes to one of them.
        with contextlib.suppress(FileNotFoundError):
            for session in process_folder.iterdir():
                if session.name != _WORK_FILE:
                    session.rename(sessions / session.name)
            own = process_folder.rename(process_folder.with_name(f".{process_folder.name}"))
            unfinished += work.requests if (work := _read_work(own)) else 0
            shutil.rmtree(own)
    return unfinished


def _reloading_models(folder: Path) -> list[str]:
    """Return the names of the models that are being reloaded."""
    return sorted(mark.parent.name for mark in (folder / _STATES).glob(f"*/{_RELOADS_FILE}"))


def _all_process_folders(folder: Path) -> Iterator[Path]:
    """Yield the process folders of all models of a server."""
    models = (folder / _STATES).glob("*/")
    return (process_folder for model in models for process_folder in _process_folders(model))


def _process_folders(model: Path) -> Iterator[Path]:
    """Yield the process folders of a model."""
    return (process_folder for process_folder in model.glob("[0-9]*-*/") if process_folder.is_dir())


def _read_work(process_folder: Path) -> RunningWork | None:
    """Read the state of a process; return None if another process is just taking over its folder."""
    try:
        is_pipeline, requests, stage = _WORK_FORMAT.unpack((process_folder / _WORK_FILE).read_bytes())
        sessions = sum(file.name != _WORK_FILE for file in process_folder.iterdir())
    except FileNotFoundError:
        return None
    pid = int(process_folder.name.lstrip(".").partition("-")[0])
    return RunningWork(pid, bool(is_pipeline), requests, ProcessStage(stage), sessions)


def _is_alive(process_folder: Path) -> bool:
    pid, started, _ = process_folder.name.split("-", 2)
    return process_identity(int(pid)) == f"{pid}-{started}"


def process_identity(pid: int) -> str | None:
    """Return a living process's id and start time as text, since process ids are reused; None if dead."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A killed process stays a zombie, since Triton does not wait for it.
    return None if state in "ZX" else f"{pid}-{rest[18]}"


def _session_file(session_id: object) -> str:
    # The hash keeps a caller's text out of the path; repr keeps 7 and "7" apart, which are two sessions.
    return hashlib.sha256(repr(session_id).encode()).hexdigest()


def _read_restarts(folder: Path) -> int:
    file = folder / _RESTARTS_FILE
    return int(file.read_text()) if file.exists() else 0
