"""One session for all instances of a model on a device: its weights are in memory once, whatever their count.

Triton gives each instance a process of its own. The first that gets the graph's lock loads it and answers the
others over a socket in the server's private folder; they hold no weights. Its session runs their requests
side by side, on one pool of threads. When its process ends, the next instance that is asked loads the graph
in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import IO, Any

from slipway_serving.backends.onnxruntime.execution import Arrays
from slipway_serving.backends.onnxruntime.signature import Signature

FOLDER_VARIABLE = "SLIPWAY_SHARED_GRAPHS"
"""Environment variable of a server's processes: its private folder in which instances find each other."""
# Less than that is less than what a process of Python and ONNX Runtime holds anyway (60 MB).
SHARED_FROM_BYTES = 32 * 2**20
_POLL_S = 0.05


@dataclass(frozen=True)
class Loaded:
    """A graph that can be run.

    Attributes:
        signature: its tensors.
        run: wanted output names, inputs -> outputs in that order; may be called by several threads.
    """

    signature: Signature
    run: Callable[[Sequence[str], Arrays], Sequence[Any]]


def is_worth_sharing(config: Mapping[str, Any], kind: str, device_id: int, graph: Path) -> bool:
    """Return whether a model has several instances on a device, and weights that are more than a process.

    Args:
        config: the model's config.
        kind: "CPU" or "GPU", the kind of the instance.
        device_id: which GPU.
        graph: its file, in the folder of whatever weights lie beside it.
    """
    groups = [
        group
        for group in config.get("instance_group", [])
        if group.get("kind") == f"KIND_{kind}" and (kind == "CPU" or device_id in group.get("gpus", []))
    ]
    if sum(int(group.get("count", 1)) for group in groups) < 2 or not graph.is_file():
        return False
    return sum(path.stat().st_size for path in graph.parent.iterdir() if path.is_file()) >= SHARED_FROM_BYTES


def place(folder: Path, config: Mapping[str, Any], kind: str, device_id: int, graph: Path) -> Path:
    """Return where the instances meet that run the same file with the same config on the same device."""
    file = graph.stat()
    # A model that is replaced while it serves has its new instances beside its old ones.
    identity = [config, kind, device_id, str(graph), file.st_ino, file.st_mtime_ns, file.st_size]
    text = json.dumps(identity, sort_keys=True)
    return folder / hashlib.sha256(text.encode()).hexdigest()[:16]


class SharedGraph:
    """A graph that this instance holds, or reaches in the instance that does.

    Args:
        meeting: from :func:`place`.
        load: loads the graph; what it raises is raised.

    Attributes:
        signature: the graph's tensors.
    """

    signature: Signature

    def __init__(self, meeting: Path, load: Callable[[], Loaded]) -> None:
        self._lock_path = meeting.with_suffix(".lock")
        # Relative, as a socket's path may have 107 characters: Triton's stubs work in the folder around it.
        self._address = os.path.relpath(meeting.with_suffix(".socket"))
        self._load = load
        self._held: Loaded | None = None
        self._lock: IO[bytes] | None = None
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self._served: set[Connection] = set()
        self._join()

    @property
    def is_held_here(self) -> bool:
        """Whether the graph is in this process."""
        return self._held is not None

    def run(self, wanted: Sequence[str], inputs: Arrays) -> Sequence[Any]:
        """Run the graph.

        Raises:
            ConnectionError: the instance that held it ended meanwhile; the next run loads it anew.
            Exception: by the name and with the text that ONNX Runtime's had.
        """
        if self._connection is not None and self._connection.poll():
            # Nobody speaks unasked: it is the end of that process.
            self._connection.close()
            self._connection = None
            self._join()
        if self._held is not None:
            return self._held.run(wanted, inputs)
        assert self._connection is not None  # _join has it so.
        try:
            self._connection.send((list(wanted), dict(inputs)))
            failure, outputs = self._connection.recv()
        except (EOFError, OSError) as error:
            # Not run again: a request that ended one process would end them all.
            raise ConnectionError("the instance that held it ended") from error
        if failure is not None:
            name, text = failure
            raise type(name, (RuntimeError,), {})(text)
        return list(outputs)

    def close(self) -> None:
        """Let go of the graph; those that reach it here have to load it themselves."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                Client(self._address, "AF_UNIX").close()  # wakes the thread that accepts
            listener.close()
        for connection in list(self._served):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)  # closing it would not wake the thread that waits on it
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            self._lock.close()
        self._held = self._connection = self._lock = None

    def _join(self) -> None:
        """Reach the instance that holds the graph, or become it; wait while another one loads."""
        while not (self._take() or self._reach()):
            time.sleep(_POLL_S)

    def _take(self) -> bool:
        lock = self._lock_path.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        try:
            self._held = self._load()
            self.signature = self._held.signature
            Path(self._address).unlink(missing_ok=True)
            self._listener = Listener(self._address, "AF_UNIX", backlog=64)
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        threading.Thread(target=self._accept, args=(self._listener, self._held), daemon=True).start()
        return True

    def _reach(self) -> bool:
        try:
            connection = Client(self._address, "AF_UNIX")
            self.signature = connection.recv()
        except (OSError, EOFError):
            return False
        self._connection = connection
        return True

    def _accept(self, listener: Listener, held: Loaded) -> None:
        while self._listener is listener:
            try:
                connection = listener.accept()
            except OSError:  # the listener was closed
                return
            threading.Thread(target=self._answer, args=(connection, held), daemon=True).start()

    def _answer(self, connection: Connection, held: Loaded) -> None:
        """Run what one other instance asks for, until it goes."""
        self._served.add(connection)
        with connection, contextlib.suppress(EOFError, OSError):
            connection.send(held.signature)
            while True:
                wanted, inputs = connection.recv()
                connection.send(_tried(held, wanted, inputs))
        self._served.discard(connection)


def _tried(held: Loaded, wanted: Sequence[str], inputs: Arrays) -> tuple[tuple[str, str] | None, Any]:
    """Return why a run failed (its error's name and text), and the outputs."""
    try:
        return None, held.run(wanted, inputs)
    except Exception as error:  # noqa: BLE001 - raised again where it was asked for
        return (type(error).__name__, str(error)), None
