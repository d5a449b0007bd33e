"""Jobs of callers: pages, wishes, webhooks, and the log of changes."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_jobs import LEASE_S, Clock, add_key, claim, create, run_of
from sqlalchemy import select
from sqlalchemy.orm import Session

from slipway_gateway.access.limits import KeyLimits
from slipway_gateway.database.engine import Database
from slipway_gateway.database.revisions import upgrade
from slipway_gateway.database.tables import Delivery
from slipway_gateway.errors import ApiError
from slipway_gateway.jobs.job import Job, Status, Wish
from slipway_gateway.jobs.store import JobStore
from slipway_serving.protocol.errors import InvalidRequest


async def ids(store: JobStore, owner: str, **page: Any) -> list[str]:
    return [job.id for job in (await store.list(owner, **page))[0]]


async def test_list_pages_through_all_jobs_of_the_key(store: JobStore, clock: Clock) -> None:
    created = []
    for number in range(5):
        clock.now += number % 2  # two have the same time
        created.append((await create(store, now=clock.now)).id)
        await create(store, "ben", now=clock.now)
    expected = sorted(created)
    assert await ids(store, "anna", order="asc") == expected
    page, more = await store.list("anna", limit=2)
    assert ([job.id for job in page], more) == (expected[:2:-1], True)
    page, more = await store.list("anna", limit=3, after=page[-1].id)
    assert ([job.id for job in page], more) == (expected[2::-1], False)


@pytest.mark.parametrize("after", ["video_", "video_\0", "\ud800", "x" * 5000])
async def test_job_is_unknown_when_its_id_is_any_text(store: JobStore, after: str) -> None:
    assert await store.get(after, "anna") is None
    for call in (store.list("anna", after=after), store.ask(after, "anna", Wish.PAUSE)):
        with pytest.raises(ApiError, match="does not exist") as unknown:
            await call
        assert unknown.value.status == 404


async def test_job_is_unknown_when_it_belongs_to_another_key_or_was_deleted(store: JobStore) -> None:
    job = await create(store)
    assert await store.get(job.id, "ben") is None
    for call in (
        store.ask(job.id, "ben", Wish.DELETE),
        store.resume(job.id, "ben"),
        store.list("ben", after=job.id),
    ):
        with pytest.raises(ApiError, match="does not exist"):
            await call
    await claim(store)
    await store.ask(job.id, "anna", Wish.DELETE)
    assert await store.get(job.id, "anna") is None
    assert await ids(store, "anna") == []
    assert (await store.get(job.id, None)) is not None


async def test_queued_job_changes_at_once_when_it_is_paused_or_cancelled(
    store: JobStore, clock: Clock
) -> None:
    job = await create(store)
    paused = await store.ask(job.id, "anna", Wish.PAUSE)
    assert (paused.status, paused.expires_at) == (Status.PAUSED, clock.now + 1000.0)
    assert await store.ask(job.id, "anna", Wish.PAUSE) == paused
    assert await store.claim("w", {"tiny_video": 1}, LEASE_S) is None
    cancelled = await store.ask(job.id, "anna", Wish.CANCEL)
    assert (cancelled.status, cancelled.completed_at) == (Status.CANCELLED, clock.now)
    assert await store.ask(job.id, "anna", Wish.CANCEL) == cancelled


async def test_running_job_gets_the_wish_and_ends_at_its_next_step(store: JobStore) -> None:
    await create(store)
    job = await claim(store)
    asked = await store.ask(job.id, "anna", Wish.PAUSE)
    assert (asked.status, asked.wish) == (Status.IN_PROGRESS, Wish.PAUSE)
    await store.ask(job.id, "anna", Wish.CANCEL)
    with pytest.raises(ApiError, match="is being cancelled"):
        await store.ask(job.id, "anna", Wish.PAUSE)
    # The run has stopped for the pause, but the caller wants more by now.
    assert (await store.pause(job.id, run_of(job))).status is Status.CANCELLED


@pytest.mark.parametrize("ask", [Wish.PAUSE, Wish.CANCEL])
async def test_wish_conflicts_when_the_job_has_ended(store: JobStore, ask: Wish) -> None:
    await create(store)
    job = await claim(store)
    await store.complete(job.id, run_of(job), inference_time_s=1.0)
    with pytest.raises(ApiError, match="is completed and cannot be") as conflict:
        await store.ask(job.id, "anna", ask)
    assert (conflict.value.status, conflict.value.final) == (409, True)


async def test_deleted_job_is_gone_for_its_caller_when_it_was_queued(store: JobStore) -> None:
    job = await create(store)
    deleted = await store.ask(job.id, "anna", Wish.DELETE)
    assert (deleted.status, deleted.wish) == (Status.CANCELLED, Wish.DELETE)
    with pytest.raises(ApiError, match="does not exist"):
        await store.ask(job.id, "anna", Wish.DELETE)
    assert await store.claim("w", {"tiny_video": 1}, LEASE_S) is None
    assert await store.remove(job.id)
    assert not await store.remove(job.id)
    assert await store.ids() == set()


async def test_deleted_job_is_removed_by_its_run_when_it_was_running(store: JobStore) -> None:
    await create(store)
    job = await claim(store)
    assert (await store.ask(job.id, "anna", Wish.DELETE)).status is Status.IN_PROGRESS
    assert not await store.remove(job.id)
    assert await store.report(job.id, run_of(job), step=1, steps=10, phase=None) is Wish.DELETE
    assert await store.remove(job.id, run_of(job))


async def test_job_goes_on_with_changes_when_it_is_resumed(store: JobStore, clock: Clock) -> None:
    await create(store)
    job = await claim(store)
    run = run_of(job)
    await store.state_saved(job.id, run, 3)
    await store.draft_saved(job.id, run, 3)
    paused = await store.pause(job.id, run)
    assert (paused.status, paused.draft_step) == (Status.PAUSED, 3)
    clock.now += 1
    behind = await create(store)
    clock.now += 1
    resumed = await store.resume(job.id, "anna", {"guidance_scale": 4.0, "priority": "normal"})
    assert resumed.status is Status.QUEUED
    assert resumed.request == {"prompt": "a ship", "seed": 7, "guidance_scale": 4.0, "priority": "normal"}
    assert resumed.expires_at is None
    assert (await claim(store)).id == behind.id
    again = await claim(store)
    assert (again.id, again.step, again.state_step, again.attempts) == (job.id, 3, 3, 1)


async def test_resume_conflicts_when_the_job_is_not_paused(store: JobStore) -> None:
    job = await create(store)
    with pytest.raises(ApiError, match="only a paused video") as conflict:
        await store.resume(job.id, "anna")
    assert conflict.value.final
    await claim(store)
    await store.ask(job.id, "anna", Wish.PAUSE)
    with pytest.raises(ApiError, match="wait until it is paused") as conflict:
        await store.resume(job.id, "anna")
    assert not conflict.value.final
    with pytest.raises(InvalidRequest, match="priority must be"):
        await store.resume(job.id, "anna", {"priority": "urgent"}, limits=KeyLimits())


async def deliveries(database: Database) -> list[Delivery]:
    def work(session: Session) -> list[Delivery]:
        return list(session.scalars(select(Delivery).order_by(Delivery.event)))

    return await database.read(work)


async def test_webhook_is_stored_with_the_end_of_its_job(
    store: JobStore, database: Database, clock: Clock
) -> None:
    url = "https://example.com/hook"
    for _ in range(4):
        await create(store, webhook_url=url)
    await create(store)
    failed, completed, cancelled, deleted, silent = [await claim(store) for _ in range(5)]
    await store.fail(failed.id, run_of(failed), "internal", "a fault")
    await store.complete(completed.id, run_of(completed), inference_time_s=1.0)
    await store.cancel(cancelled.id, run_of(cancelled))
    await store.ask(deleted.id, "anna", Wish.DELETE)
    await store.cancel(deleted.id, run_of(deleted))
    await store.complete(silent.id, run_of(silent), inference_time_s=1.0)
    rows = await deliveries(database)
    assert [(row.event, row.job_id) for row in rows] == [
        ("video.cancelled", cancelled.id),
        ("video.completed", completed.id),
        ("video.failed", failed.id),
    ]
    assert (rows[2].url, rows[2].owner, rows[2].next_at) == (url, "anna", clock.now)
    assert rows[2].payload == {
        "type": "video.failed",
        "timestamp": "2023-11-14T22:13:20Z",
        "data": {
            "id": failed.id,
            "status": "failed",
            "model": "tiny_video",
            "error": {"code": "internal", "message": "a fault"},
        },
    }


async def test_changes_name_changed_and_removed_jobs_once_they_are_read(store: JobStore) -> None:
    before = await create(store)
    mark = (await store.changed_since(None)).mark
    job, other = await create(store), await create(store)
    await store.ask(other.id, "anna", Wish.DELETE)
    await store.remove(other.id)
    changes = await store.changed_since(mark)
    assert [changed.id for changed in changes.jobs] == [job.id]
    assert changes.removed == [other.id]
    assert before.id not in changes.removed
    await store.prune()
    assert (await store.changed_since(changes.mark)).removed in ([], [other.id])


async def test_versions_grow_with_every_change_when_old_changes_were_pruned(
    store: JobStore, clock: Clock
) -> None:
    job = await create(store)
    clock.now += 4000
    mark = (await store.changed_since(None)).mark
    await store.prune()
    assert (await store.changed_since(mark)).mark >= mark
    later = await create(store)
    assert later.version > job.version
    assert [changed.id for changed in (await store.changed_since(mark)).jobs] == [later.id]


async def test_counts_are_those_of_each_model_and_status(store: JobStore, clock: Clock) -> None:
    start = clock.now
    await create(store)
    await create(store, model="other")
    clock.now += 1
    await create(store)
    await claim(store)
    counts = {(count.model, count.status): (count.number, count.oldest) for count in await store.counts()}
    assert counts == {
        ("tiny_video", Status.IN_PROGRESS): (1, start),
        ("tiny_video", Status.QUEUED): (1, start + 1),
        ("other", Status.QUEUED): (1, start),
    }


async def test_lease_is_measured_by_the_clock_of_postgresql_when_no_other_is_given(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(postgres_url)
    database = Database(postgres_url)
    await add_key(database, "anna")
    # This machine's clock is an hour behind, which must not make the lease of a worker here lapse.
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)
    store = JobStore(database)
    job: Job = await create(store)
    claimed = await claim(store)
    assert (claimed.id, await store.lapsed(1)) == (job.id, [])
    assert (claimed.lease_until or 0) > 1_750_000_000.0
    await database.close()
