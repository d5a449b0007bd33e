"""Order in which waiting jobs start, computed from a snapshot of the queue.

:meth:`slipway_gateway.jobs.store.JobStore.claim` lets the database choose one next job. Here the whole
sequence of such choices is simulated, so that every waiting job has a position.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_SMALLEST_STEP_S = 1e-6


class QueuedJob(NamedTuple):
    """Job that waits.

    Attributes:
        rank: Place of its priority; 0 starts first.
        queued_at: Time at which it was queued, or 0 if a worker gave it back.
        created_at: Time of creation.
        id: Identifier.
        owner: Identifier of its key.
        model: Name of the served model.
    """

    rank: int
    queued_at: float
    created_at: float
    id: str
    owner: str
    model: str


def start_order(jobs: Iterable[QueuedJob], served: Mapping[str, int]) -> list[str]:
    """Return the identifiers of jobs in the order in which they start.

    Within a priority, keys take turns: the key that was served longest ago is next, with its first job. Of
    keys that were never served, the one whose first job was queued first is next.

    Args:
        jobs: Waiting jobs.
        served: Number of the turn in which each key was served last, 0 for never.
    """
    turns = dict(served)
    turn = max(turns.values(), default=0)
    lines: dict[int, dict[str, deque[QueuedJob]]] = defaultdict(lambda: defaultdict(deque))
    for job in sorted(jobs):
        lines[job.rank][job.owner].append(job)
    order = []
    for rank in sorted(lines):
        line = lines[rank]
        heads = [(turns.get(owner, 0), waiting[0]) for owner, waiting in line.items()]
        heapq.heapify(heads)
        while heads:
            _, job = heapq.heappop(heads)
            order.append(job.id)
            turn += 1
            turns[job.owner] = turn
            line[job.owner].popleft()
            if line[job.owner]:
                heapq.heappush(heads, (turn, line[job.owner][0]))
    return order


def positions(jobs: Iterable[QueuedJob], served: Mapping[str, int]) -> dict[str, int]:
    """Return the position of each waiting job among those of its model; 1 is next.

    Models have places of their own, so the jobs of one do not wait for those of another.

    Args:
        jobs: Waiting jobs.
        served: Number of the turn in which each key was served last, 0 for never.
    """
    by_model: dict[str, list[QueuedJob]] = defaultdict(list)
    for job in jobs:
        by_model[job.model].append(job)
    return {
        job_id: position
        for waiting in by_model.values()
        for position, job_id in enumerate(start_order(waiting, served), start=1)
    }


def distinct_times(times: Sequence[float]) -> list[float]:
    """Return ascending times as strictly ascending ones, so that each is a place of its own in the queue.

    Jobs that workers gave back have the time 0 in common; a time moves by as little as a database keeps.

    Args:
        times: Times in Unix seconds, ascending.
    """
    found: list[float] = []
    for time_s in times:
        found.append(time_s if not found else max(time_s, found[-1] + _SMALLEST_STEP_S))
    return found
