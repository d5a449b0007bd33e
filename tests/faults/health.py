"""The health check that every fault ends with: alive, ready, a good answer, shared memory and memory back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import psutil
import tritonclient.grpc as triton
from server_fixtures import infer, wait_until

from slipway_serving.system.server_processes import process_ids, shared_memory_regions
from slipway_serving.triton.server import Server

_MIB = 1 << 20
# Allocators keep what small requests have touched once, of each thread.
_SLACK_BYTES = 32 * _MIB
ONES = np.ones((1, 4), np.float32)


@dataclass(frozen=True)
class Health:
    """What a server holds.

    Attributes:
        memory_bytes: resident in `tritonserver` and its stubs.
        shared_bytes: of its regions in `/dev/shm`.
        stubs: process ids of its Python models; others mean that one was started anew.
    """

    memory_bytes: int
    shared_bytes: int
    stubs: frozenset[int]


def look(server: Server) -> Health:
    """Measure what a server holds now."""
    pids = process_ids(server.server_id)
    return Health(
        sum(map(_resident_bytes, pids)),
        sum(map(_size_bytes, shared_memory_regions(server.server_id))),
        frozenset(pids) - {server.pid},
    )


def _size_bytes(region: Path) -> int:
    try:
        return region.stat().st_size
    except FileNotFoundError:  # its process ended meanwhile
        return 0


def _resident_bytes(pid: int) -> int:
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.NoSuchProcess:  # it ended meanwhile
        return 0


def _says(server: Server, state: str) -> bool:
    return httpx.get(f"http://{server.http_url}/v2/health/{state}", timeout=60).status_code == 200


def answer_well(server: Server) -> None:
    """Send a good request to the small server and check its answer."""
    with triton.InferenceServerClient(server.grpc_url) as client:
        np.testing.assert_array_equal(infer(client, "affine", x=ONES)["y"], 2 * ONES + 1)


@contextmanager
def healthy(
    server: Server,
    good: Callable[[Server], object] = answer_well,
    slack_bytes: int = _SLACK_BYTES,
    shared_slack_bytes: int = 0,
    *,
    ready: bool = True,
    same_processes: bool = True,
) -> Iterator[Health]:
    """Hold that a server is after the block as it was before.

    Args:
        server: running.
        good: sends a good request and raises where its answer is wrong.
        slack_bytes: by how much its resident memory may have grown.
        shared_slack_bytes: by how much its shared memory may have grown.
        ready: whether it must be ready if it was: an order that failed may have ended that before.
        same_processes: whether its Python models must be in the processes in which they were; in as many,
            otherwise.

    Yields:
        What it held before.
    """
    good(server)
    before = look(server)
    states = [state for state in ("live", "ready") if _says(server, state)]
    yield before

    def as_before() -> bool:
        stubs = look(server).stubs
        return stubs == before.stubs if same_processes else len(stubs) == len(before.stubs)

    wait_until(as_before, "the Python models as they were", 120)
    # Triton is not ready for a second or two after the unload of a model.
    for state in states if ready else ("live",):
        wait_until(partial(_says, server, state), state, 60)
    good(server)
    shared_bytes = before.shared_bytes + shared_slack_bytes
    wait_until(lambda: look(server).shared_bytes <= shared_bytes, "shared memory given back", 60)
    wait_until(
        lambda: look(server).memory_bytes <= before.memory_bytes + slack_bytes,
        f"memory back at {before.memory_bytes / _MIB:.0f} MiB, got {look(server)}",
        60,
    )
