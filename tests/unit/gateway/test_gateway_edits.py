"""Edits of waiting jobs in the store: fields, priority, and the order of the queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from gateway_jobs import LEASE_S, Clock, claim, create, new_job, run_of

from slipway_gateway.access.limits import UNLIMITED, KeyLimits
from slipway_gateway.errors import ApiError
from slipway_gateway.jobs.job import Job, NewJob, Place, Status, Wish
from slipway_gateway.jobs.order import distinct_times
from slipway_gateway.jobs.store import JobStore
from slipway_serving.protocol.errors import InvalidRequest, NotReady


def edited(job: Job, **changes: Any) -> NewJob:
    """The fields of a job with some others."""
    return replace(new_job(job.owner), **{"id": job.id, "request": job.request, **changes})


async def queue(store: JobStore, number: int, clock: Clock, **changes: Any) -> list[Job]:
    """Create jobs, one a second."""
    jobs = []
    for _ in range(number):
        clock.now += 1
        jobs.append(await create(store, **changes))
    return jobs


async def started(store: JobStore, number: int) -> list[str]:
    """Claim jobs and return their identifiers in the order of their start."""
    return [(await claim(store)).id for _ in range(number)]


async def test_waiting_job_starts_with_other_fields_when_it_was_edited(store: JobStore) -> None:
    job = await create(store)
    request = {"prompt": "a boat", "seed": 9}
    changed = await store.edit(
        job, edited(job, request=request, seed=9, steps=4, width=32, priority="urgent"), UNLIMITED
    )
    assert (changed.request, changed.steps, changed.width, changed.priority) == (request, 4, 32, "urgent")
    assert changed.version > job.version
    first = await claim(store)
    assert (first.id, first.request, first.seed) == (job.id, request, 9)


async def test_edit_conflicts_when_the_job_runs_has_ended_or_was_edited_meanwhile(store: JobStore) -> None:
    job = await create(store)
    changed = edited(job, request={"prompt": "a boat", "seed": 7})
    await store.edit(job, changed, UNLIMITED)
    with pytest.raises(ApiError, match="was changed by another request") as conflict:
        await store.edit(job, changed, UNLIMITED)
    assert (conflict.value.status, conflict.value.code_name) == (409, "video_changed")
    running = await claim(store)
    for moved in (None, Place(None)):
        with pytest.raises(ApiError, match="is in_progress") as conflict:
            await store.edit(running, changed, UNLIMITED, place=moved)
        assert (conflict.value.status, conflict.value.code_name) == (409, "video_in_progress")
    await store.complete(running.id, run_of(running), inference_time_s=1.0)
    with pytest.raises(ApiError, match="is completed, and only"):
        await store.edit(running, changed, UNLIMITED)
    with pytest.raises(ApiError, match="does not exist"):
        await store.edit(replace(running, owner="ben"), changed, UNLIMITED)


async def test_paused_job_is_edited_but_not_moved(store: JobStore) -> None:
    paused = await store.ask((await create(store)).id, "anna", Wish.PAUSE)
    changed = await store.edit(paused, edited(paused, request={"prompt": "b", "seed": 7}), UNLIMITED)
    assert (changed.status, changed.request["prompt"]) == (Status.PAUSED, "b")
    with pytest.raises(ApiError, match="only a waiting video can be moved"):
        await store.edit(changed, None, UNLIMITED, place=Place(None))


async def test_edit_is_refused_when_it_exceeds_a_limit_of_the_key(store: JobStore) -> None:
    job = await create(store)
    for changes, text in (({"priority": "urgent"}, "priority must be"), ({"steps": 1000}, "size must be")):
        with pytest.raises(InvalidRequest, match=text):
            await store.edit(job, edited(job, **changes), KeyLimits(pixels=64 * 48 * 33 * 10))
    assert await store.get(job.id, "anna") == job


async def test_picture_is_stored_only_while_no_worker_can_take_the_job(store: JobStore) -> None:
    stored = []

    async def put() -> None:
        stored.append(True)

    job = await create(store)
    await store.edit(job, edited(job), UNLIMITED, store_pictures=put)
    running = await claim(store)
    with pytest.raises(ApiError, match="is in_progress"):
        await store.edit(running, edited(running), UNLIMITED, store_pictures=put)
    assert stored == [True]


async def test_job_stays_as_it_was_when_its_picture_cannot_be_stored(store: JobStore) -> None:
    async def put() -> None:
        await asyncio.sleep(0.01)
        raise NotReady("contents: the store cannot be written")

    job = await create(store)
    with pytest.raises(NotReady, match="cannot be written"):
        await store.edit(job, edited(job, request={"prompt": "b"}), UNLIMITED, store_pictures=put)
    assert await store.get(job.id, "anna") == job
    assert (await claim(store)).request == job.request


@pytest.mark.parametrize(
    ("moved", "before", "order"),
    [(3, 0, [3, 0, 1, 2]), (0, 2, [1, 0, 2, 3]), (0, None, [1, 2, 3, 0]), (1, 2, [0, 1, 2, 3])],
)
async def test_jobs_start_in_the_order_that_their_key_gives_them(
    store: JobStore, clock: Clock, moved: int, before: int | None, order: list[int]
) -> None:
    jobs = await queue(store, 4, clock)
    place = Place(None if before is None else jobs[before].id)
    done = await store.edit(jobs[moved], None, UNLIMITED, place=place)
    assert (done.status, done.request) == (Status.QUEUED, jobs[moved].request)
    clock.now += 1
    last = await create(store)
    expected = [jobs[index].id for index in order] + [last.id]
    positions = await store.positions()
    assert sorted(positions, key=positions.__getitem__) == expected
    assert await started(store, 5) == expected


async def test_move_keeps_the_turns_of_keys_and_of_priorities(store: JobStore, clock: Clock) -> None:
    mine = await queue(store, 3, clock)
    others = await queue(store, 2, clock, owner="ben")
    urgent = (await queue(store, 1, clock, priority="urgent"))[0]
    await store.edit(mine[2], None, UNLIMITED, place=Place(mine[0].id))
    expected = [urgent.id, others[0].id, mine[2].id, others[1].id, mine[0].id, mine[1].id]
    assert await started(store, 6) == expected


async def test_job_moves_to_another_priority_and_a_place_there_at_once(store: JobStore, clock: Clock) -> None:
    urgent = await queue(store, 2, clock, priority="urgent")
    job = (await queue(store, 1, clock))[0]
    await store.edit(job, edited(job, priority="urgent"), UNLIMITED, place=Place(urgent[1].id))
    assert await started(store, 3) == [urgent[0].id, job.id, urgent[1].id]


async def test_place_is_refused_when_it_is_not_that_of_another_waiting_job_of_the_key(
    store: JobStore, clock: Clock
) -> None:
    running = (await queue(store, 1, clock))[0]
    await claim(store)
    job = (await queue(store, 1, clock))[0]
    urgent = (await queue(store, 1, clock, priority="urgent"))[0]
    other = (await queue(store, 1, clock, owner="ben"))[0]
    for before in (job.id, running.id, urgent.id, other.id, "video_x", "\0"):
        with pytest.raises(InvalidRequest, match="before must be the id of another waiting video of yours"):
            await store.edit(job, None, UNLIMITED, place=Place(before))
    assert await store.get(job.id, "anna") == job


async def test_jobs_that_workers_gave_back_can_be_moved(store: JobStore, clock: Clock) -> None:
    jobs = await queue(store, 3, clock)
    for job in [await claim(store) for _ in jobs]:
        await store.requeue(job.id, run_of(job), counted=False)
    clock.now += LEASE_S
    await store.edit(jobs[2], None, UNLIMITED, place=Place(jobs[0].id))
    assert await started(store, 3) == [jobs[2].id, jobs[0].id, jobs[1].id]


def test_times_become_places_of_their_own() -> None:
    times = distinct_times([0.0, 0.0, 0.0, 1.7e9, 1.7e9, 1.7e9 + 1])
    assert times == sorted(set(times)) and len(times) == 6
    assert times[0] == 0.0 and times[3] == 1.7e9 and times[5] == 1.7e9 + 1


async def test_failures_are_those_since_a_time(store: JobStore, clock: Clock) -> None:
    for number in range(3):
        await create(store)
        job = await claim(store)
        clock.now += 10
        await store.fail(job.id, run_of(job), "internal", f"fault {number}")
    since = clock.now - 10
    found = await store.failures(since, 10)
    assert [(each.message, each.code, each.model) for each in found] == [
        ("fault 2", "internal", "tiny_video"),
        ("fault 1", "internal", "tiny_video"),
    ]
    assert found[0].at == clock.now and len(await store.failures(0.0, 1)) == 1
