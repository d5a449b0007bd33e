"""The worker: it claims jobs while servers have free places, and runs each on one server.

A worker holds a lease on each of its jobs and renews it. If the worker dies, the lease lapses and another
worker goes on from the job's last state. A worker that stops lets its videos stop at their next step, stores
their states and gives the jobs back to the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from slipway_gateway.contents.store import ContentStore
from slipway_gateway.fields.kinds import VideoKind
from slipway_gateway.jobs.feed import JobFeed
from slipway_gateway.jobs.job import Job, LeaseLost, Wish
from slipway_gateway.jobs.store import JobStore
from slipway_gateway.jobs.upkeep_store import RUNS_FROM_STATE
from slipway_gateway.metrics import GatewayMetrics
from slipway_gateway.replicas.replica import Replica
from slipway_gateway.replicas.replicas import Replicas
from slipway_gateway.runs.run import SERVER_GONE, STATE_REFUSED, Ending, Run, RunResult
from slipway_gateway.settings import GatewaySettings
from slipway_serving.protocol.errors import SlipwayError

_log = logging.getLogger(__name__)
_IDLE_S = 1.0
"""Longest wait for free places on servers that other gateways use too; new jobs and freed places end it."""
_ASK_AGAIN_S = 5.0
"""Time after which the database is asked again though no job was queued, since other claims may fail."""
_RETRY_S = 1.0
"""Wait after the database did not answer."""
_REFUSED_S = 0.5
"""Wait before a job that a server refused is given back, so that it does not come again at once."""
REFUSALS = 20
"""Number of servers in a row that may be gone before a job's first step; each further one counts as a run."""
TRIES = 5
"""Number of times that the end of a run is written, while the database does not answer."""


@dataclass(frozen=True)
class _EmptyQueue:
    """Answer of the database that no job waits for some models.

    Without it, a worker with free places would ask once a second, while its own jobs use the processor.

    Attributes:
        queued: Number of changes of the queue that were known before the question.
        models: Models that the question was about.
        until_s: Time until which the answer counts, on the clock of `time.monotonic`.
    """

    queued: int
    models: frozenset[str]
    until_s: float

    def holds(self, queued: int, models: Collection[str]) -> bool:
        """Return whether no job waits for these models, so far as this process knows."""
        return queued == self.queued and self.models.issuperset(models) and time.monotonic() < self.until_s


class Worker:
    """Worker of one process.

    Args:
        name: Name that no other worker has.
        settings: Settings of the gateway.
        store: Store of the jobs.
        feed: Feed of the jobs' changes.
        contents: Store of the contents.
        replicas: Servers.
        kinds: Kinds of videos by model.
        metrics: Metrics of the process.
    """

    def __init__(
        self,
        name: str,
        settings: GatewaySettings,
        store: JobStore,
        feed: JobFeed,
        contents: ContentStore,
        replicas: Replicas,
        kinds: Mapping[str, VideoKind],
        metrics: GatewayMetrics,
    ) -> None:
        self.name = name
        self._settings, self._store, self._feed = settings, store, feed
        self._contents, self._replicas, self._kinds = contents, replicas, kinds
        self._metrics = metrics
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Number of servers in a row that were gone before a job's first step: perhaps because of the job.
        self._refusals: Counter[str] = Counter()
        self._stopping = asyncio.Event()
        self._freed = asyncio.Event()
        # Numbers of the changes of servers and of the queue that the last claim has seen.
        self._seen = self._queued = 0
        self._empty: _EmptyQueue | None = None

    @property
    def running(self) -> int:
        """Number of jobs that the worker runs."""
        return len(self._runs)

    def stop(self) -> None:
        """Claim no further job, and interrupt the running ones at their next step."""
        self._stopping.set()
        self._freed.set()
        for run in tuple(self._runs.values()):
            run.interrupt()

    async def run(self) -> None:
        """Work until :meth:`stop`; returns when the last run has ended."""
        renewing = asyncio.create_task(self._renew())
        try:
            while not self._stopping.is_set():
                try:
                    found = await self._claim()
                except SlipwayError as error:
                    _log.warning("worker %s: %s", self.name, error)
                    await self._pause()
                    continue
                except Exception:  # noqa: BLE001  (a worker that ended would leave a process that does nothing)
                    _log.exception("worker %s: no job could be claimed", self.name)
                    await self._pause()
                    continue
                if not found:
                    await self._wait()
            await self._end_runs()
        finally:
            renewing.cancel()
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(renewing, *self._tasks, return_exceptions=True)

    async def _claim(self) -> bool:
        """Claim one job and begin to work on it; return False if there is none for the free places."""
        self._seen, self._queued = self._replicas.changed.count, self._feed.queued.count
        self._freed.clear()
        free = {
            model: count for model, count in self._replicas.free().items() if count and model in self._kinds
        }
        if not free or (self._empty is not None and self._empty.holds(self._queued, free)):
            return False
        job = await self._store.claim(self.name, free, self._settings.lease_s)
        if job is None:
            self._empty = _EmptyQueue(self._queued, frozenset(free), time.monotonic() + _ASK_AGAIN_S)
            return False
        place = self._replicas.take(job.model)
        if place is None:  # The place was taken, or the server left, in the meantime.
            await self._store.requeue(job.id, _run_of(job), counted=False)
            return False
        task = asyncio.create_task(self._work(job, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _pause(self) -> None:
        """Wait a moment after an error, or until the worker stops."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), _RETRY_S)

    async def _wait(self) -> None:
        """Wait until there may be something to claim."""
        waits = [
            asyncio.ensure_future(wait)
            for wait in (
                self._feed.queued.after(self._queued, _IDLE_S),
                self._freed.wait(),
                self._replicas.changed.after(self._seen, _IDLE_S),
            )
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=_IDLE_S)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _end_runs(self) -> None:
        """Wait for the interrupted runs within the exit timeout, then end them."""
        tasks = tuple(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.exit_timeout_s)
        for run in tuple(self._runs.values()):
            run.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self, job: Job, place: AbstractContextManager[Replica]) -> None:
        """Run a job on a server and record how the run ended."""
        started_s = time.monotonic()
        watching: asyncio.Task[None] | None = None
        try:
            with place as replica:
                run = self._runs[job.id] = Run(
                    job,
                    self._kinds[job.model],
                    replica.client,
                    self._store,
                    self._contents,
                    _run_of(job),
                    self._settings.checkpoint_every_steps,
                )
                if self._stopping.is_set():
                    run.interrupt()
                watching = asyncio.create_task(self._watch(run))
                result = await run.work()
            self._count_refusal(job.id, result)
            await self._record(run, result, time.monotonic() - started_s)
        except LeaseLost as error:
            _log.warning("%s: %s", job.id, error)
            await self._clean_up(job)
        except Exception:  # noqa: BLE001  (the worker goes on with the other jobs; the lease of this one lapses)
            _log.exception("%s: the run ended with an error", job.id)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            self._runs.pop(job.id, None)
            self._freed.set()

    def _count_refusal(self, job_id: str, result: RunResult) -> None:
        if result.ending is Ending.REFUSED and result.code == SERVER_GONE:
            self._refusals[job_id] += 1
        elif result.ending is not Ending.REFUSED:
            self._refusals.pop(job_id, None)

    async def _watch(self, run: Run) -> None:
        """Hand the wishes of a job's owner to its run; begins again after the database did not answer."""
        while True:
            try:
                async for job in self._feed.watch(run.job.id):
                    if job.worker != run.job.worker or job.status.is_final:
                        run.abandon()
                        return
                    run.ask(job.wish)
            except SlipwayError as error:
                _log.warning("%s: its wishes cannot be read now: %s", run.job.id, error)
                await asyncio.sleep(_RETRY_S)
            else:
                # The feed ends without a last word when the owner has deleted the job.
                run.ask(Wish.DELETE)
                return

    async def _record(self, run: Run, result: RunResult, time_s: float) -> None:
        """Write how a run ended; tries again while the database does not answer."""
        for number in range(TRIES):
            try:
                await self._settle(await self._recorded(run, result, time_s))
            except LeaseLost:
                raise
            except SlipwayError:
                if number + 1 == TRIES:
                    raise
                await asyncio.sleep(_RETRY_S * 2**number)
            else:
                return

    async def _recorded(self, run: Run, result: RunResult, time_s: float) -> Job:
        """Write how a run ended, and return the job as it is then."""
        job_id, name = run.job.id, _run_of(run.job)
        spent: dict[str, Any] = {"inference_time_s": time_s, "stage_durations": result.stage_durations}
        match result.ending:
            case Ending.COMPLETED:
                return await self._store.complete(job_id, name, **spent)
            case Ending.STOPPED:
                return await self._store.pause(job_id, name, **spent)
            case Ending.FAILED:
                return await self._store.fail(job_id, name, result.code, result.message, **spent)
            case Ending.REMOVED:
                return await self._store.cancel(job_id, name, **spent)
            case Ending.INTERRUPTED | Ending.REFUSED:
                return await self._interrupted(run, result, spent)

    async def _interrupted(self, run: Run, result: RunResult, spent: Mapping[str, Any]) -> Job:
        """Queue an interrupted job again, or fail it if it has begun too often."""
        job, name = run.job, _run_of(run.job)
        if result.ending is Ending.REFUSED:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _REFUSED_S)
        if result.code == STATE_REFUSED:
            await self._store.state_saved(job.id, name, None)
            await self._contents.delete(job.id, "state")
        has_state = run.has_state and result.code != STATE_REFUSED
        interrupted = result.ending is Ending.INTERRUPTED
        counted = (interrupted or self._refusals[job.id] > REFUSALS) and not self._stopping.is_set()
        if counted and (reason := self._reason_to_give_up(job, has_state=has_state)):
            message = f"{job.model}: {reason}; the last reason: {result.message}"
            return await self._store.fail(job.id, name, "server_lost", message, **spent)
        if has_state and interrupted:
            self._metrics.continued(job.model)
        return await self._store.requeue(job.id, name, counted=counted, **spent)

    def _reason_to_give_up(self, job: Job, *, has_state: bool) -> str:
        """Return why an interrupted job is not tried again, or an empty text if it is."""
        most = self._settings.max_attempts
        if not has_state and job.attempts >= most:
            return f"the video began {job.attempts} times and each server stopped before its first state"
        if has_state and job.runs_from_state >= max(most, RUNS_FROM_STATE):
            return (
                f"the video went on {job.runs_from_state} times from step {job.state_step} and each server"
                " stopped before the next state"
            )
        return ""

    async def _clean_up(self, job: Job) -> None:
        """Delete what a run that had lost its job has stored after the job was removed."""
        try:
            if await self._store.get(job.id, None) is None:
                await self._contents.delete(job.id)
        except SlipwayError as error:
            _log.warning("%s: upkeep deletes its contents later: %s", job.id, error)

    async def _settle(self, job: Job) -> None:
        """Do what the end of a run asks for: count it, deliver its webhook, and delete what nobody needs."""
        if not job.status.is_final:
            return
        self._metrics.finished(job)
        if job.wish is Wish.DELETE:
            await self._contents.delete(job.id)
            await self._store.remove(job.id)
        else:
            await self._contents.delete(job.id, "state")

    async def _renew(self) -> None:
        """Renew the leases; a run whose lease is lost ends at once."""
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            # A job that is claimed meanwhile is not among those that the database returns.
            runs = tuple(self._runs.items())
            names = {job_id: _run_of(run.job) for job_id, run in runs}
            try:
                own = await self._store.renew(names, self._settings.lease_s)
            except SlipwayError as error:
                _log.warning("worker %s: the leases were not renewed: %s", self.name, error)
                continue
            for job_id, run in runs:
                if job_id not in own:
                    run.abandon()


def _run_of(job: Job) -> str:
    """Return the name of the run that a claimed job has."""
    assert job.worker is not None
    return job.worker
