"""Creation of jobs: repeated requests, limits of keys and of the queue."""

from __future__ import annotations

import asyncio

import pytest
from gateway_jobs import Clock, claim, create, new_job, run_of

from slipway_gateway.access.limits import UNLIMITED, KeyLimits
from slipway_gateway.errors import ApiError, answer_to
from slipway_gateway.jobs.job import Status, Wish, is_job_id, new_job_id
from slipway_gateway.jobs.store import JobStore
from slipway_serving.protocol.errors import InvalidRequest, Overloaded


def test_ids_sort_by_time_and_are_recognised() -> None:
    earlier, later = new_job_id(1_700_000_000.0), new_job_id(1_700_000_000.001)
    assert earlier < later
    assert len(earlier) == len("video_") + 26
    assert is_job_id(earlier)
    assert not is_job_id(f"{earlier}\0")


async def test_job_has_all_that_its_creator_gave_when_it_is_new(store: JobStore, clock: Clock) -> None:
    prompt = "U+0000 \0, a lone surrogate \ud800 and a 🚢"
    new = new_job(
        request={"prompt": prompt, "seed": 2**63 - 1},
        seed=2**63 - 1,
        priority="low",
        webhook_url="https://example.com/hook",
        traceparent="00-1-2-03",
        remixed_from="video_x",
        input_bytes=9,
    )
    job, _ = await store.create(new, UNLIMITED, max_waiting=10)
    assert job == await store.get(new.id, "anna")
    assert job.request == {"prompt": prompt, "seed": 2**63 - 1}
    assert (job.status, job.step, job.steps, job.priority) == (Status.QUEUED, 0, 10, "low")
    assert (job.created_at, job.started_at, job.expires_at) == (clock.now, None, None)
    assert (job.seed, job.webhook_url, job.remixed_from) == (2**63 - 1, new.webhook_url, "video_x")


@pytest.mark.parametrize("key", [None, "key 1"])
async def test_equal_requests_make_one_job_when_they_come_at_once(store: JobStore, key: str | None) -> None:
    news = [new_job(fingerprint="same", idempotency_key=key) for _ in range(8)]
    answers = await asyncio.gather(*(store.create(new, UNLIMITED, max_waiting=10) for new in news))
    assert len({job.id for job, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1


async def test_equal_request_makes_a_new_job_when_the_earlier_one_is_old_or_over(
    store: JobStore, clock: Clock
) -> None:
    first = await create(store, fingerprint="same")
    clock.now += 59
    assert (await store.create(new_job(fingerprint="same"), UNLIMITED, max_waiting=10))[0].id == first.id
    clock.now += 2
    second = await create(store, fingerprint="same")
    await store.ask(second.id, "anna", Wish.CANCEL)
    third = await create(store, fingerprint="same")
    await store.ask(third.id, "anna", Wish.DELETE)
    await create(store, fingerprint="same")
    # Another key's request is another request.
    await create(store, "ben", fingerprint="same")


async def test_idempotency_key_finds_the_job_for_a_day_even_when_it_failed(
    store: JobStore, clock: Clock
) -> None:
    first = await create(store, fingerprint="same", idempotency_key="k")
    running = await claim(store)
    await store.fail(first.id, run_of(running), "internal", "a fault")
    clock.now += 86_000
    found, is_new = await store.create(
        new_job(fingerprint="same", idempotency_key="k"), UNLIMITED, max_waiting=10
    )
    assert (found.id, found.status, is_new) == (first.id, Status.FAILED, False)
    # Another key asks for another video, however equal the request.
    await create(store, fingerprint="same", idempotency_key="l")
    clock.now += 86_400
    await create(store, fingerprint="same", idempotency_key="k")


async def test_idempotency_key_is_refused_when_another_request_had_it(store: JobStore) -> None:
    await create(store, idempotency_key="k")
    with pytest.raises(InvalidRequest, match="idempotency_key must be new"):
        await create(store, idempotency_key="k")
    for key in ("a\0b", "x" * 256):
        with pytest.raises(InvalidRequest, match="idempotency_key must"):
            await create(store, idempotency_key=key)


async def test_priority_is_refused_when_it_is_above_that_of_the_key(store: JobStore) -> None:
    with pytest.raises(
        InvalidRequest, match="video: priority must be one of normal, low .* got 'urgent'"
    ) as no:
        await create(store, priority="urgent", limits=KeyLimits(priority="normal"))
    assert answer_to(no.value).content["error"]["param"] == "priority"
    with pytest.raises(InvalidRequest, match="priority must be one of urgent, normal, low"):
        await create(store, priority="highest")
    await create(store, priority="low", limits=KeyLimits(priority="low"))


async def test_video_is_refused_when_it_has_more_pixels_than_the_key_may_ask_for(store: JobStore) -> None:
    pixels = 64 * 48 * 33 * 10
    await create(store, limits=KeyLimits(pixels=pixels))
    with pytest.raises(InvalidRequest, match=f"size must be at most {pixels - 1} pixels"):
        await create(store, limits=KeyLimits(pixels=pixels - 1))


async def test_queue_refuses_exactly_what_is_too_much_when_many_come_at_once(store: JobStore) -> None:
    answers = await asyncio.gather(*(create(store, max_waiting=5) for _ in range(12)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, Overloaded)]
    assert len(refused) == 7
    assert "queue is full with 5" in str(refused[0])


async def test_key_may_not_have_more_waiting_jobs_than_its_limit(store: JobStore) -> None:
    limits = KeyLimits(waiting=1)
    await create(store, limits=limits)
    await create(store, "ben", limits=limits)
    with pytest.raises(Overloaded, match="may have 1 waiting"):
        await create(store, limits=limits)
    first = await claim(store)
    paused = await create(store, limits=limits)
    await store.ask(paused.id, "anna", Wish.PAUSE)
    await create(store, limits=limits)
    # Pausing and resuming is no way around the limit.
    with pytest.raises(Overloaded, match="may have 1 waiting"):
        await store.resume(paused.id, "anna", limits=limits)
    assert first.owner == "anna"


async def test_key_may_not_create_more_jobs_a_day_when_it_deletes_them(store: JobStore, clock: Clock) -> None:
    limits = KeyLimits(jobs_per_day=2)
    for _ in range(2):
        job = await create(store, limits=limits)
        await store.ask(job.id, "anna", Wish.DELETE)
        await store.remove(job.id)
    with pytest.raises(ApiError, match="may create 2 videos a day") as refused:
        await create(store, limits=limits)
    assert refused.value.status == 429
    assert 0 < (refused.value.retry_after_s or 0) <= 86_400
    clock.now += refused.value.retry_after_s or 0
    await create(store, limits=limits)
