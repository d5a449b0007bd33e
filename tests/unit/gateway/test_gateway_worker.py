"""Runs of a worker whose server ends, over and over: the job goes on, and not for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from gateway_jobs import create, run_of

from slipway_client import Checkpoint, Progress
from slipway_gateway.contents.store import ContentStore
from slipway_gateway.database.changes import ChangeSignals
from slipway_gateway.database.engine import Database
from slipway_gateway.fields.kinds import video_kinds
from slipway_gateway.jobs.feed import JobFeed
from slipway_gateway.jobs.job import Job, Status, Wish
from slipway_gateway.jobs.store import JobStore
from slipway_gateway.jobs.upkeep_store import RUNS_FROM_STATE
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.runs import worker as module
from slipway_gateway.runs.worker import Worker
from slipway_gateway.settings import GatewaySettings
from slipway_gateway.signal import Signal
from slipway_serving.protocol.errors import NotReady, Overloaded, SlipwayError
from slipway_serving.protocol.snapshots.denoising_states import DenoisingState, Origin

MODEL, STEPS = "wan_t2v", 10
VALUES = {"prompt": "a ship", "seed": 7, "frames": 5, "height": 32, "width": 32, "steps": STEPS}
STATE = DenoisingState(MODEL, Origin("weights", "files", {}), VALUES, "", 2, STEPS, {}).to_bytes()


class EndingServer:
    """A server and its client in one: each video does one step, and the server ends.

    Attributes:
        changed: Signal of the server's places.
        looks: Number of times that its free places were asked for.
        runs: Number of requests.
        has_states: True if the first request yields a state.
        holds: Event that a run waits for before the server ends; None to end at once.
        refusals: Errors with which the next videos are refused before their first step.
    """

    def __init__(self, *, has_states: bool) -> None:
        self.changed, self.runs, self.has_states = Signal(), 0, has_states
        self.client = self
        self.looks = 0
        self.holds: asyncio.Event | None = None
        self.refusals: list[SlipwayError] = []

    def free(self) -> dict[str, int]:
        self.looks += 1
        return {MODEL: 1}

    def take(self, model: str) -> contextlib.AbstractContextManager[EndingServer]:
        return contextlib.nullcontext(self)

    async def generate(self, request: Any, **_: Any) -> AsyncIterator[Any]:
        self.runs += 1
        if self.refusals:
            raise self.refusals.pop()
        if self.has_states and self.runs == 1:
            yield Checkpoint(STATE, 2)
        yield Progress(3, STEPS, 0.1)
        if self.holds is not None:
            await self.holds.wait()
        raise NotReady("the server has ended")


class SlowStore(JobStore):
    """A store whose database does not answer the first questions for a job."""

    failures = 0

    async def get(self, job_id: str, owner: str | None) -> Job | None:
        if self.failures:
            self.failures -= 1
            raise NotReady("database: it cannot be used now")
        return await super().get(job_id, owner)


class CountingStore(JobStore):
    """A store that counts how often a worker asks for a job."""

    claims = 0

    async def claim(self, worker: str, models: Mapping[str, int], lease_s: float) -> Job | None:
        self.claims += 1
        return await super().claim(worker, models, lease_s)


@pytest.fixture
def contents(tmp_path: Path) -> ContentStore:
    return ContentStore(str(tmp_path / "contents"))


@contextlib.asynccontextmanager
async def working(
    server: EndingServer, database: Database, store: JobStore, contents: ContentStore
) -> AsyncIterator[None]:
    """Run a worker of the server until the block ends."""
    async with ChangeSignals(database) as signals, JobFeed(store, signals) as feed:
        worker = Worker(
            "w",
            GatewaySettings(triton=("unused:1",)),
            store,
            feed,
            contents,
            server,  # type: ignore[arg-type]
            video_kinds(),
            GatewayMetrics(),
        )
        task = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()
            await task


async def ended(store: JobStore, job: Job) -> Job:
    """Poll a job until it has ended."""
    async with asyncio.timeout(60):
        while True:
            found = await store.get(job.id, None)
            assert found is not None
            if found.status.is_final:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("has_states", "runs"), [(False, 2), (True, RUNS_FROM_STATE + 1)])
async def test_job_fails_with_the_reason_when_each_server_ends(
    database: Database, store: JobStore, contents: ContentStore, has_states: bool, runs: int
) -> None:
    server = EndingServer(has_states=has_states)
    job = await create(store, model=MODEL, request=VALUES, steps=STEPS)
    async with working(server, database, store, contents):
        failed = await ended(store, job)
    assert (failed.status, failed.error_code) == (Status.FAILED, "server_lost")
    assert "the server has ended" in str(failed.error_message)
    assert server.runs == runs
    assert failed.attempts == (1 if has_states else 2)


async def test_job_fails_when_each_server_is_gone_before_its_first_step(
    store: JobStore, database: Database, contents: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSALS", 3)
    monkeypatch.setattr(module, "_REFUSED_S", 0.0)
    server = EndingServer(has_states=False)
    server.refusals = [NotReady("its process has ended") for _ in range(99)]
    job = await create(store, model=MODEL, request=VALUES, steps=STEPS)
    async with working(server, database, store, contents):
        failed = await ended(store, job)
    assert (failed.status, failed.error_code) == (Status.FAILED, "server_lost")
    assert "its process has ended" in str(failed.error_message)
    assert server.runs == 3 + 2


async def test_job_waits_for_any_time_when_servers_are_busy(
    store: JobStore, database: Database, contents: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSALS", 3)
    monkeypatch.setattr(module, "_REFUSED_S", 0.0)
    server = EndingServer(has_states=False)
    server.refusals = [Overloaded("all instances work") for _ in range(20)]
    job = await create(store, model=MODEL, request=VALUES, steps=STEPS)
    async with working(server, database, store, contents):
        failed = await ended(store, job)
    assert server.runs == 20 + 2
    assert failed.attempts == 2


async def test_wish_is_met_when_the_database_did_not_answer_at_first(
    database: Database, store: JobStore, contents: ContentStore
) -> None:
    slow = SlowStore(database)
    slow.failures = 1
    server = EndingServer(has_states=False)
    server.holds = asyncio.Event()
    job = await create(store, model=MODEL, request=VALUES, steps=STEPS)
    async with working(server, database, slow, contents):
        async with asyncio.timeout(60):
            while not server.runs or slow.failures:
                await asyncio.sleep(0.01)
        await store.ask(job.id, "anna", Wish.CANCEL)
        assert (await ended(store, job)).status is Status.CANCELLED


async def test_database_is_asked_for_a_job_once_when_none_was_queued_since(
    database: Database, store: JobStore, contents: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ASK_AGAIN_S", 600.0)  # A busy machine takes longer than the usual time.
    counting, server = CountingStore(database), EndingServer(has_states=False)
    async with working(server, database, counting, contents):
        for look in range(1, 5):
            async with asyncio.timeout(60):
                while server.looks < look:
                    await asyncio.sleep(0.01)
            server.changed.give()
        assert counting.claims == 1
        job = await create(store, model=MODEL, request=VALUES, steps=STEPS)
        assert (await ended(store, job)).status is Status.FAILED


async def test_contents_are_deleted_when_a_run_stores_a_state_after_its_job_was_removed(
    database: Database, store: JobStore, contents: ContentStore
) -> None:
    class Removing(EndingServer):
        """A server whose job is removed before its first state."""

        async def generate(self, request: Any, **_: Any) -> AsyncIterator[Any]:
            self.runs += 1
            found = await store.get(job.id, None)
            assert found is not None
            assert await store.remove(job.id, run_of(found))
            yield Checkpoint(STATE, 2)
            raise AssertionError("the run goes on")

    server = Removing(has_states=True)
    job = await create(store, model=MODEL, request=VALUES, steps=STEPS)
    async with working(server, database, store, contents):
        async with asyncio.timeout(60):
            while not server.runs or await store.get(job.id, None) is not None:
                await asyncio.sleep(0.01)
    assert await contents.jobs() == {}
