"""Runs of jobs: claims, turns of keys, leases, reports, and the end of a run."""

from __future__ import annotations

import asyncio

import pytest
from gateway_jobs import LEASE_S, Clock, claim, create, run_of

from slipway_gateway.database.engine import Database
from slipway_gateway.jobs.job import LeaseLost, Status, Wish
from slipway_gateway.jobs.store import JobStore


async def test_claim_takes_only_models_with_a_free_place(store: JobStore) -> None:
    job = await create(store)
    assert await store.claim("w", {"tiny_video": 0, "other": 2}, LEASE_S) is None
    assert await store.claim("w", {}, LEASE_S) is None
    assert (await claim(store)).id == job.id


async def test_claim_begins_the_run(store: JobStore, clock: Clock) -> None:
    await create(store)
    clock.now += 5
    job = await claim(store, "worker-1")
    assert job.status is Status.IN_PROGRESS
    assert run_of(job).startswith("worker-1#")
    assert (job.started_at, job.lease_until) == (clock.now, clock.now + LEASE_S)
    assert (job.attempts, job.runs_from_state) == (1, 1)


async def test_claimers_never_get_the_same_job_when_many_claim_at_once(
    store: JobStore, database: Database
) -> None:
    created = {(await create(store, owner)).id for owner in ("anna", "ben") for _ in range(25)}
    databases = [Database(database.url.render_as_string(hide_password=False)) for _ in range(2)]

    async def work(number: int) -> list[str]:
        own = JobStore(databases[number % 2])
        claimed = []
        while (job := await own.claim(f"w{number}", {"tiny_video": 1}, LEASE_S)) is not None:
            claimed.append(job.id)
        return claimed

    claimed = [job_id for got in await asyncio.gather(*map(work, range(8))) for job_id in got]
    assert len(claimed) == 50
    assert set(claimed) == created
    for other in databases:
        await other.close()


async def test_keys_take_turns_when_one_has_many_jobs(store: JobStore, clock: Clock) -> None:
    for _ in range(20):
        await create(store, "anna")
    clock.now += 1
    for _ in range(2):
        await create(store, "ben")
    owners = [(await claim(store)).owner for _ in range(6)]
    assert owners == ["anna", "ben", "anna", "ben", "anna", "anna"]


async def test_priority_comes_before_turns(store: JobStore) -> None:
    for priority in ("low", "normal", "urgent", "low"):
        await create(store, "anna", priority=priority)
    await create(store, "ben", priority="normal")
    got = [(job.owner, job.priority) for job in [await claim(store) for _ in range(5)]]
    assert got == [
        ("anna", "urgent"),
        ("ben", "normal"),
        ("anna", "normal"),
        ("anna", "low"),
        ("anna", "low"),
    ]


async def test_lease_is_renewed_only_for_the_runs_that_have_it(store: JobStore, clock: Clock) -> None:
    for _ in range(3):
        await create(store)
    mine, lost, other = [await claim(store) for _ in range(3)]
    clock.now += LEASE_S + 1
    await store.renew({other.id: run_of(other)}, 100 * LEASE_S)
    assert {job.id for job in await store.lapsed(2)} == {mine.id, lost.id}
    again = await claim(store)
    runs = {job.id: run_of(job) for job in (mine, lost, other)} | {again.id: run_of(again)}
    assert await store.renew(runs, LEASE_S) == {again.id, other.id}
    assert await store.renew({}, LEASE_S) == frozenset()


async def test_run_cannot_write_when_its_lease_lapsed_and_the_same_worker_has_the_job_again(
    store: JobStore, clock: Clock
) -> None:
    await create(store)
    old = await claim(store)
    clock.now += LEASE_S + 1
    assert [job.status for job in await store.lapsed(5)] == [Status.QUEUED]
    new = await claim(store)
    run = run_of(old)
    writes = [
        store.report(old.id, run, step=9, steps=10, phase="denoising", preview=b"old"),
        store.state_saved(old.id, run, 9),
        store.draft_saved(old.id, run, 9),
        store.complete(old.id, run, inference_time_s=1.0),
        store.fail(old.id, run, "internal", "a fault"),
        store.pause(old.id, run),
        store.cancel(old.id, run),
        store.requeue(old.id, run),
    ]
    for write in writes:
        with pytest.raises(LeaseLost, match="no longer the job of w#"):
            await write
    assert not await store.remove(old.id, run)
    assert await store.get(old.id, None) == new


async def test_step_does_not_go_back_when_a_report_is_older_than_the_state(store: JobStore) -> None:
    await create(store)
    job = await claim(store)
    assert (await store.state_saved(job.id, run_of(job), 4)).step == 4
    await store.report(job.id, run_of(job), step=3, steps=10, phase="denoising")
    found = await store.get(job.id, None)
    assert found is not None
    assert (found.step, found.state_step, found.phase) == (4, 4, "denoising")


async def test_run_may_go_on_when_its_lease_is_over_but_nobody_took_the_job(
    store: JobStore, clock: Clock
) -> None:
    await create(store)
    job = await claim(store)
    clock.now += LEASE_S + 1
    assert await store.renew({job.id: run_of(job)}, LEASE_S) == {job.id}
    assert await store.lapsed(1) == []


async def test_lapsed_job_is_begun_again_once_and_then_fails_when_it_has_no_state(
    store: JobStore, clock: Clock
) -> None:
    job = await create(store, webhook_url="https://example.com/hook")
    await claim(store)
    assert await store.lapsed(2) == []
    clock.now += LEASE_S + 1
    (queued,) = await store.lapsed(2)
    assert (queued.status, queued.attempts, queued.wish) == (Status.QUEUED, 1, Wish.NONE)
    assert (await claim(store)).attempts == 2
    clock.now += LEASE_S + 1
    (failed,) = await store.lapsed(2)
    assert (failed.id, failed.status, failed.error_code) == (job.id, Status.FAILED, "worker_lost")
    assert "stopped answering 2 times before it saved a first state" in str(failed.error_message)
    assert failed.expires_at == clock.now + 1000.0


async def test_lapsed_job_goes_on_from_its_state_and_fails_when_no_run_gets_further(
    store: JobStore, clock: Clock
) -> None:
    await create(store)
    job = await claim(store)
    await store.report(job.id, run_of(job), step=6, steps=10, phase="denoising")
    await store.state_saved(job.id, run_of(job), 5)
    for _ in range(3):
        clock.now += LEASE_S + 1
        (queued,) = await store.lapsed(1, 3)
        assert (queued.status, queued.state_step, queued.step) == (Status.QUEUED, 5, 5)
        job = await claim(store)
        assert job.attempts == 1
    clock.now += LEASE_S + 1
    (failed,) = await store.lapsed(1, 3)
    assert failed.status is Status.FAILED
    assert "3 times after step 5" in str(failed.error_message)


async def test_new_state_allows_more_runs(store: JobStore, clock: Clock) -> None:
    await create(store)
    for step in range(1, 6):
        job = await claim(store)
        await store.state_saved(job.id, run_of(job), step)
        clock.now += LEASE_S + 1
        assert [job.status for job in await store.lapsed(1, 1)] == [Status.QUEUED]


@pytest.mark.parametrize(
    ("wish", "status"),
    [(Wish.PAUSE, Status.PAUSED), (Wish.CANCEL, Status.CANCELLED), (Wish.DELETE, Status.CANCELLED)],
)
async def test_wish_is_met_when_the_worker_dies_or_gives_the_job_back(
    store: JobStore, clock: Clock, wish: Wish, status: Status
) -> None:
    await create(store)
    await create(store)
    first, second = await claim(store), await claim(store)
    for job in (first, second):
        await store.ask(job.id, "anna", wish)
    assert (await store.requeue(first.id, run_of(first))).status is status
    clock.now += LEASE_S + 1
    assert [job.status for job in await store.lapsed(9)] == [status]


async def test_report_stores_progress_and_returns_the_wish(store: JobStore) -> None:
    await create(store)
    job = await claim(store)
    run = run_of(job)
    assert await store.preview(job.id) is None
    assert await store.report(job.id, run, step=1, steps=12, phase="denoising", preview=b"1") is Wish.NONE
    await store.ask(job.id, "anna", Wish.PAUSE)
    assert await store.report(job.id, run, step=2, steps=12, phase="denoising", preview=b"2") is Wish.PAUSE
    assert await store.report(job.id, run, step=3, steps=12, phase="decoding") is Wish.PAUSE
    assert await store.preview(job.id) == (2, b"2")
    got = await store.get(job.id, "anna")
    assert got is not None
    assert (got.step, got.steps, got.phase) == (3, 12, "decoding")
    assert got.version > job.version


async def test_times_of_all_runs_are_added(store: JobStore) -> None:
    await create(store)
    job = await claim(store)
    await store.requeue(job.id, run_of(job), inference_time_s=2.0, stage_durations={"encoding": 0.5})
    job = await claim(store)
    done = await store.complete(
        job.id, run_of(job), inference_time_s=3.0, stage_durations={"encoding": 0.25, "denoising": 2.0}
    )
    assert done.inference_time_s == 5.0
    assert done.stage_durations == {"encoding": 0.75, "denoising": 2.0}
    assert (done.status, done.step, done.completed_at) == (Status.COMPLETED, 10, job.started_at)
    assert await store.preview(job.id) is None


async def test_requeued_job_comes_first_and_keeps_its_attempts_when_it_does_not_count(
    store: JobStore,
) -> None:
    first = await create(store)
    await create(store)
    job = await claim(store)
    assert (await store.requeue(job.id, run_of(job), counted=False)).attempts == 0
    job = await claim(store)
    assert (job.id, job.attempts) == (first.id, 1)
    assert (await store.requeue(job.id, run_of(job))).attempts == 1


async def test_error_is_stored_when_it_has_characters_that_no_database_takes(store: JobStore) -> None:
    await create(store)
    job = await claim(store)
    failed = await store.fail(job.id, run_of(job), "internal", "a\0b\ud800c")
    assert failed.error_message == "a\ufffdb?c"


@pytest.mark.parametrize("wish", [Wish.PAUSE, Wish.CANCEL])
async def test_video_is_completed_when_the_wish_came_too_late(store: JobStore, wish: Wish) -> None:
    await create(store)
    job = await claim(store)
    await store.ask(job.id, "anna", wish)
    done = await store.complete(job.id, run_of(job), inference_time_s=1.0)
    assert (done.status, done.wish) == (Status.COMPLETED, Wish.NONE)
