"""Order in which waiting jobs start, computed from a snapshot of the queue.

:meth:`slipway_gateway.jobs.store.JobStore.claim` lets the database choose one next job. Here the whole
sequence of such choices is simulated, so that every waiting job has a position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

_SMALLEST_STEP_S = 1e-6


class QueuedJob(NamedTuple):
    """Job that waits.

    Attributes:
        rank: Place of its priority; 0 starts first.
        place: Place by the time at which it was queued, among all jobs that wait.
        id: Identifier.
        owner: Identifier of its key.
        model: Name of the served model.
    """

    rank: int
    place: int
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
    before = max(turns.values(), default=0) + 1
    lines: dict[int, dict[str, list[QueuedJob]]] = defaultdict(lambda: defaultdict(list))
    for job in sorted(jobs):
        lines[job.rank][job.owner].append(job)
    order: list[str] = []
    for rank in sorted(lines):
        # A key that was served comes behind all others that wait, so all rounds have the order of the first.
        waiting = sorted(lines[rank].values(), key=lambda line: (turns.get(line[0].owner, 0), line[0]))
        for line in zip_longest(*waiting):
            for job in line:
                if job is not None:
                    turns[job.owner] = before + len(order)
                    order.append(job.id)
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
