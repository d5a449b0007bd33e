"""Jobs, keys and a clock for the gateway's tests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from slipway_gateway.access.limits import UNLIMITED, KeyLimits
from slipway_gateway.database.engine import Database
from slipway_gateway.database.tables import KeyRow
from slipway_gateway.jobs.job import Job, NewJob, new_job_id
from slipway_gateway.jobs.store import JobStore

LEASE_S = 30.0
_NUMBERS = itertools.count()


class Clock:
    """A clock that only moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def new_job(owner: str = "anna", *, now: float = 1_700_000_000.0, **changes: Any) -> NewJob:
    """A job that no other request has asked for, with a higher id than the one before."""
    number = next(_NUMBERS)
    new = NewJob(
        id=new_job_id(now + number / 1000),
        owner=owner,
        model="tiny_video",
        request={"prompt": "a ship", "seed": 7, "stop_after_step": 3},
        parameters={"prompt": "a ship"},
        seed=7,
        width=64,
        height=48,
        frames=33,
        fps=16.0,
        steps=10,
        fingerprint=f"fingerprint {number}",
    )
    return replace(new, **changes)


async def add_key(database: Database, key_id: str) -> None:
    """Add a key with a chosen identifier."""

    def work(session: Session, _: bool) -> None:
        session.add(
            KeyRow(
                id=key_id,
                name=key_id,
                is_admin=False,
                priority="urgent",
                webhook_secret="whsec_test",
                created_at=0.0,
            )
        )

    await database.write(work)


async def create(
    store: JobStore,
    owner: str = "anna",
    *,
    limits: KeyLimits = UNLIMITED,
    max_waiting: int = 1000,
    **changes: Any,
) -> Job:
    """Add a new job to the queue."""
    job, is_new = await store.create(new_job(owner, **changes), limits, max_waiting=max_waiting)
    assert is_new
    return job


async def claim(store: JobStore, worker: str = "w") -> Job:
    """Claim a job, of which there must be one."""
    job = await store.claim(worker, {"tiny_video": 1}, LEASE_S)
    assert job is not None
    return job


def run_of(job: Job) -> str:
    """The name of the run that has a job."""
    assert job.worker is not None
    return job.worker


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 30.0) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(0.01)
