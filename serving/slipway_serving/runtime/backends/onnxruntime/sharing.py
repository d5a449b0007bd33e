"""One session shared by all instances of a model on a device, so that its weights are in memory only once.

Triton runs each instance in its own process. The first one that gets the graph's lock loads the graph and
answers the others over a socket in the server's private folder, so the others hold no weights. Its session
runs their requests concurrently, on one thread pool. When its process ends, the next instance that receives
a request loads the graph in its place.
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

from slipway_serving.runtime.backends.onnxruntime.execution import Arrays
from slipway_serving.runtime.backends.onnxruntime.signature import Signature

GRAPHS_FOLDER_VARIABLE = "SLIPWAY_SHARED_GRAPHS"
"""Environment variable with the server's private folder, in which instances find each other."""
# Smaller weights are not worth sharing: a process of Python and ONNX Runtime takes 60 MB anyway.
SHARED_FROM_BYTES = 32 * 2**20
_POLL_S = 0.05


@dataclass(frozen=True)
class LoadedGraph:
    """Graph that is loaded and can be run.

    Attributes:
        signature: Tensors of the graph.
        run: Function from wanted output names and inputs to outputs in that order; several threads may call
            it.
    """

    signature: Signature
    run: Callable[[Sequence[str], Arrays], Sequence[Any]]


def is_worth_sharing(config: Mapping[str, Any], kind: str, device_id: int, graph: Path) -> bool:
    """Return whether a model has several instances on a device and weights large enough to share.

    Args:
        config: Config of the model.
        kind: Kind of the instance, "CPU" or "GPU".
        device_id: Number of the GPU.
        graph: File of the graph, in the same folder as its weights.
    """
    groups = [
        group
        for group in config.get("instance_group", [])
        if group.get("kind") == f"KIND_{kind}" and (kind == "CPU" or device_id in group.get("gpus", []))
    ]
    if sum(int(group.get("count", 1)) for group in groups) < 2 or not graph.is_file():
        return False
    return sum(path.stat().st_size for path in graph.parent.iterdir() if path.is_file()) >= SHARED_FROM_BYTES


def shared_path(folder: Path, config: Mapping[str, Any], kind: str, device_id: int, graph: Path) -> Path:
    """Return the path prefix of lock and socket for instances of the same file, config and device."""
    file = graph.stat()
    # The path alone does not identify the file: new instances of a replaced model run beside the old ones.
    identity = [config, kind, device_id, str(graph), file.st_ino, file.st_mtime_ns, file.st_size]
    text = json.dumps(identity, sort_keys=True)
    return folder / hashlib.sha256(text.encode()).hexdigest()[:16]


class SharedGraph:
    """Graph that this instance has loaded, or uses through the instance that has loaded it.

    Args:
        path_prefix: Path prefix from :func:`shared_path`.
        load: Function that loads the graph; its exceptions are passed on.

    Attributes:
        signature: Tensors of the graph.
    """

    signature: Signature

    def __init__(self, path_prefix: Path, load: Callable[[], LoadedGraph]) -> None:
        self._lock_path = path_prefix.with_suffix(".lock")
        # A socket's path may have at most 107 characters. The relative path is short enough, since Triton's
        # stubs run in the folder around it.
        self._address = os.path.relpath(path_prefix.with_suffix(".socket"))
        self._load = load
        self._graph: LoadedGraph | None = None
        self._lock: IO[bytes] | None = None
        self._listener: Listener | None = None
        self._connection: Connection | None = None
        self._served: set[Connection] = set()
        self._load_or_connect()

    def run(self, wanted: Sequence[str], inputs: Arrays) -> Sequence[Any]:
        """Run the graph.

        Raises:
            ConnectionError: The instance that held the graph ended during the run; the next run reloads it.
            Exception: ONNX Runtime failed; the class has the name and the text of its exception.
        """
        if self._connection is not None and self._connection.poll():
            # The other process sends nothing without a request, so readable data means that it has ended.
            self._connection.close()
            self._connection = None
            self._load_or_connect()
        if self._graph is not None:
            return self._graph.run(wanted, inputs)
        assert self._connection is not None  # _load_or_connect loads the graph or connects.
        try:
            self._connection.send((list(wanted), dict(inputs)))
            failure, outputs = self._connection.recv()
        except (EOFError, OSError) as error:
            # The run is not repeated: a request that crashed one process would crash all of them in turn.
            raise ConnectionError("the process that runs it ended; try again") from error
        if failure is not None:
            name, text = failure
            raise type(name, (RuntimeError,), {})(text)
        return list(outputs)

    def close(self) -> None:
        """Release the graph; instances that use it through this one must load it themselves."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                Client(self._address, "AF_UNIX").close()  # This wakes the thread that accepts connections.
            listener.close()
        for connection in list(self._served):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)  # A close would not wake the thread that waits on the socket.
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            self._lock.close()
        self._graph = self._connection = self._lock = None

    def _load_or_connect(self) -> None:
        """Load the graph or connect to the instance that holds it; wait while another one loads."""
        while not (self._load_if_first() or self._connect()):
            time.sleep(_POLL_S)

    def _load_if_first(self) -> bool:
        """Load the graph and offer it to other instances; return False if another instance has the lock."""
        lock = self._lock_path.open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        try:
            self._graph = self._load()
            self.signature = self._graph.signature
            Path(self._address).unlink(missing_ok=True)
            self._listener = Listener(self._address, "AF_UNIX", backlog=64)
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        threading.Thread(target=self._accept, args=(self._listener, self._graph), daemon=True).start()
        return True

    def _connect(self) -> bool:
        try:
            connection = Client(self._address, "AF_UNIX")
            self.signature = connection.recv()
        except (OSError, EOFError):
            return False
        self._connection = connection
        return True

    def _accept(self, listener: Listener, graph: LoadedGraph) -> None:
        while self._listener is listener:
            try:
                connection = listener.accept()
            except OSError:  # The listener was closed.
                return
            threading.Thread(target=self._answer, args=(connection, graph), daemon=True).start()

    def _answer(self, connection: Connection, graph: LoadedGraph) -> None:
        """Run the requests of one other instance until it disconnects."""
        self._served.add(connection)
        with connection, contextlib.suppress(EOFError, OSError):
            connection.send(graph.signature)
            while True:
                wanted, inputs = connection.recv()
                connection.send(_run_or_error(graph, wanted, inputs))
        self._served.discard(connection)


def _run_or_error(
    graph: LoadedGraph, wanted: Sequence[str], inputs: Arrays
) -> tuple[tuple[str, str] | None, Any]:
    """Run the graph; return the name and text of its error, or None, and the outputs."""
    try:
        return None, graph.run(wanted, inputs)
    except Exception as error:  # noqa: BLE001 - raised again in the process of the caller
        return (type(error).__name__, str(error)), None
