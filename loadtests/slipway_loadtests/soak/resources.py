"""Resources of a server's processes, sampled repeatedly: memory, shared memory and file descriptors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

import psutil

from slipway_loadtests.load.outcomes import now_s
from slipway_serving.protocol.errors import InvalidRequest
from slipway_serving.system.process_state import dead_instances
from slipway_serving.system.server_folder import runtime_folder_of_process, tritonserver_at
from slipway_serving.system.server_processes import ID_VARIABLE, process_ids, shared_memory_regions

_LOOK_S = 0.5


@dataclass(frozen=True)
class Held:
    """Resources of a server at one time.

    Attributes:
        at_s: Time in seconds since the epoch.
        memory_bytes: Resident memory of `tritonserver` and its Python models; a page that two of them map
            counts twice.
        shared_bytes: Size of the server's regions in `/dev/shm`.
        descriptors: Number of open file descriptors in these processes.
        tritonserver: Process id of the `tritonserver` that listens, which it does once its models are loaded;
            None if none listens.
        zombies: Number of ended processes of Python models that `tritonserver` has not waited for.
    """

    at_s: float
    memory_bytes: int
    shared_bytes: int
    descriptors: int
    tritonserver: int | None = None
    zombies: int = 0


def held_by(server_id: str) -> Held:
    """Measure the resources of a server on this machine.

    Args:
        server_id: Server id, see :mod:`slipway_serving.system.server_processes`.
    """
    memory_bytes = shared_bytes = descriptors = zombies = 0
    tritonserver = None
    for pid in process_ids(server_id):
        with contextlib.suppress(psutil.Error):  # The process may end meanwhile.
            process = psutil.Process(pid)
            memory_bytes += process.memory_info().rss
            descriptors += process.num_fds()
            if process.name() == "tritonserver" and any(
                each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp")
            ):
                tritonserver = pid
                zombies = sum(child.status() == psutil.STATUS_ZOMBIE for child in process.children())
    for region in shared_memory_regions(server_id):
        with contextlib.suppress(FileNotFoundError):
            shared_bytes += region.stat().st_size
    return Held(now_s(), memory_bytes, shared_bytes, descriptors, tritonserver, zombies)


def changed(before: Held, now: Held) -> list[str]:
    """Return messages about a death and a restart between two samples, like those of our own server."""
    if before.tritonserver == now.tritonserver:
        return []
    died = [] if before.tritonserver is None else [f"server died: pid {before.tritonserver}"]
    return died if now.tritonserver is None else [*died, f"server restarted: pid {now.tritonserver}"]


def server_at(url: str) -> tuple[str, str]:
    """Return the gRPC address and the server id of a server on this machine.

    Args:
        url: Address HOST:PORT of its gRPC or HTTP port, optionally with a scheme.

    Raises:
        InvalidRequest: This user's `slipway serve` runs no server there.
    """
    host, _, port = url.rpartition("://")[2].rpartition(":")
    process = tritonserver_at(int(port)) if port.isdigit() else None
    found = None if process is None else process.environ().get(ID_VARIABLE)
    if process is None or found is None:
        raise InvalidRequest(
            f"soak: url must be of a server that `slipway serve` runs on this machine, since its processes"
            f" are looked at, got {url}; try --repository"
        )
    flag = "--grpc-port="
    grpc_port = next(each.removeprefix(flag) for each in process.cmdline() if each.startswith(flag))
    return f"{host}:{grpc_port}", found


class Watched:
    """Samples a server twice a second, in a thread, within its `with` block.

    Args:
        server_id: Id of the server to sample.
        told: Callback that receives the messages that our own server would give about its death and restart;
            None for no messages.
        lacks: Function that takes the names of the instances that have no process; None where the server
            itself says when a model is back.

    Attributes:
        samples: Samples taken so far.
    """

    def __init__(
        self,
        server_id: str,
        told: Callable[[str], None] | None = None,
        lacks: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._server_id, self._told, self._lacks = server_id, told, lacks
        self.samples: list[Held] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watched", daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _follow(self) -> None:
        while True:
            self.samples.append(held_by(self._server_id))
            if self._told is not None and len(self.samples) > 1:
                for words in changed(*self.samples[-2:]):
                    self._told(words)
            if self._lacks is not None and (pid := self.samples[-1].tritonserver) is not None:
                with contextlib.suppress(psutil.Error):  # The process may end meanwhile.
                    self._lacks(dead_instances(runtime_folder_of_process(psutil.Process(pid))))
            if self._done.wait(_LOOK_S):
                return
