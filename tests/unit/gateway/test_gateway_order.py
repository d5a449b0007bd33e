"""Order of starts: the positions that callers see agree with what workers claim."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

import pytest
from gateway_jobs import LEASE_S, Clock, add_key, create
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres_server import PostgresServer

from slipway_gateway.database.engine import Database
from slipway_gateway.database.revisions import upgrade
from slipway_gateway.jobs.order import QueuedJob, positions, start_order
from slipway_gateway.jobs.store import JobStore

OWNERS = ("anna", "ben", "cleo")
# Owner, priority, and whether a job is claimed after this one was added.
QUEUES = st.lists(
    st.tuples(st.sampled_from(OWNERS), st.sampled_from(("urgent", "normal", "low")), st.booleans()),
    min_size=1,
    max_size=14,
)
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


async def check_positions(url: str, queue: list[tuple[str, str, bool]]) -> None:
    """Compare the positions of a queue with the order in which its jobs are claimed."""
    upgrade(url)
    database, clock = Database(url), Clock()
    store = JobStore(database, clock=clock)
    for owner in OWNERS:
        await add_key(database, owner)
    for owner, priority, claims in queue:
        clock.now += 1
        await create(store, owner, priority=priority)
        if claims:
            await store.claim("w", {"tiny_video": 1}, LEASE_S)
    predicted = await store.positions()
    claimed = []
    while (job := await store.claim("w", {"tiny_video": 1}, LEASE_S)) is not None:
        claimed.append(job.id)
    assert predicted == {job_id: position for position, job_id in enumerate(claimed, start=1)}
    await database.close()


@FEW
@given(QUEUES)
def test_positions_agree_with_claims_when_the_queue_is_any_on_sqlite(
    queue: list[tuple[str, str, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check_positions(f"sqlite:///{Path(folder)}/jobs.db", queue))


@FEW
@given(queue=QUEUES)
def test_positions_agree_with_claims_when_the_queue_is_any_on_postgresql(
    postgres: PostgresServer, queue: list[tuple[str, str, bool]]
) -> None:
    url = postgres.create_database()
    try:
        asyncio.run(check_positions(url, queue))
    finally:
        postgres.drop_database(url)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(OWNERS)), max_size=30))
def test_no_key_starts_twice_when_another_of_its_priority_waits(jobs: list[tuple[int, str]]) -> None:
    queued = [
        QueuedJob(rank, number, f"{number:03}", owner, "m") for number, (rank, owner) in enumerate(jobs)
    ]
    by_id = {job.id: job for job in queued}
    order = [by_id[job_id] for job_id in start_order(queued, {})]
    assert sorted(order) == sorted(queued)
    for number, (job, later) in enumerate(itertools.pairwise(order)):
        assert job.rank <= later.rank
        others = {waiting.owner for waiting in order[number + 1 :] if waiting.rank == job.rank}
        if job.rank == later.rank and others - {job.owner}:
            assert later.owner != job.owner


def test_positions_count_only_jobs_of_the_same_model() -> None:
    queued = [QueuedJob(1, n, str(n), "anna", model) for n, model in enumerate("aabba")]
    assert positions(queued, {"anna": 3}) == {"0": 1, "1": 2, "4": 3, "2": 1, "3": 2}


@pytest.mark.parametrize("served", [{}, {"anna": 2, "ben": 1}])
def test_key_that_waited_longest_starts_first(served: dict[str, int]) -> None:
    queued = [
        QueuedJob(1, 1, "a", "anna", "m"),
        QueuedJob(1, 2, "b", "ben", "m"),
    ]
    assert start_order(queued, served) == (["b", "a"] if served else ["a", "b"])
