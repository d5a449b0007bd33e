"""One run of one job on one server: its events become progress, states, drafts and the finished video.

A run begins with the job's first step or continues from its state. It ends in one of six ways
(:class:`Ending`). What a later run or a caller needs is stored before the run says that it has ended: a state
before the job is queued again, a video before the job is completed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from slipway_client import AsyncClient, Checkpoint, ContactSheet, Frames, Progress, Stopped, Video
from slipway_client.moving import Output
from slipway_gateway.contents.store import ContentStore
from slipway_gateway.fields.kinds import VideoKind
from slipway_gateway.jobs.job import PREPARING, Job, Wish
from slipway_gateway.jobs.store import JobStore
from slipway_gateway.runs.progress import ProgressReporter, RunProgress
from slipway_gateway.runs.requests import is_refused_state, origin_of, request_of
from slipway_gateway.runs.results import store_draft, store_video
from slipway_gateway.runs.sections import SectionSheet
from slipway_serving.protocol.diffusion.stopping import ASKED
from slipway_serving.protocol.errors import (
    Cancelled,
    InvalidRequest,
    Malformed,
    NotReady,
    Overloaded,
    SlipwayError,
    Unrecoverable,
)
from slipway_serving.protocol.snapshots.denoising_states import Origin

_log = logging.getLogger(__name__)
DENOISING, DECODING, STORING = "denoising", "decoding", "storing"
"""Phases of a run after the first one, besides those that a server reports itself."""
SERVER_GONE = "server_gone"
"""Code of a refused run whose server could not be reached, in place of one that has no free place."""
STATE_REFUSED = "state_refused"
"""Code of a run whose state no server takes, so that the next run begins with the first step."""


class Ending(Enum):
    """Way in which a run ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    """The job is paused: its caller asked for it, or its draft is ready."""
    INTERRUPTED = "interrupted"
    """A server or the worker stops, or the server failed; another run goes on."""
    REFUSED = "refused"
    """No server began to work; another run tries again, which is no new attempt."""
    FAILED = "failed"
    REMOVED = "removed"
    """The job's owner deleted or cancelled it."""


@dataclass(frozen=True)
class RunResult:
    """Result of a run.

    Attributes:
        ending: Way in which it ended.
        code: Code of the error, for a failed run.
        message: Sentence about the error, or about the interruption.
        stage_durations: Time of each phase, in seconds.
        cache_hit_rate: Share of the evaluations that reused the first-block cache, or None.
    """

    ending: Ending
    code: str = ""
    message: str = ""
    stage_durations: dict[str, float] = field(default_factory=dict)
    cache_hit_rate: float | None = None


class Run:
    """One run of one job.

    Args:
        job: Job that the worker has claimed.
        kind: Kind of the job's video.
        client: Client of the server that works on it.
        store: Store of the jobs.
        contents: Store of the contents.
        worker: Name of the worker.
        checkpoint_every_steps: Number of steps between two states.

    Attributes:
        wish: Wish of the job's owner.
    """

    def __init__(
        self,
        job: Job,
        kind: VideoKind,
        client: AsyncClient,
        store: JobStore,
        contents: ContentStore,
        worker: str,
        checkpoint_every_steps: int,
    ) -> None:
        self.job, self._kind, self._client = job, kind, client
        self._store, self._contents, self._worker = store, contents, worker
        self._every = checkpoint_every_steps
        self.wish = Wish.NONE
        self._stop = asyncio.Event()
        self._leave = asyncio.Event()
        self._origin: Origin | None = None
        self._steps_seen = job.step
        self._has_begun = False
        self._stages = _Stages()
        self._sections = SectionSheet(job.width, job.height, round(job.fps))

    @property
    def has_state(self) -> bool:
        """True if another run can go on from a stored state."""
        return self.job.state_step is not None

    def ask(self, wish: Wish) -> None:
        """Take a wish of the job's owner: a pause stops the video at its next step, the others end it."""
        if wish in (Wish.DELETE, Wish.CANCEL):
            self.wish = wish
            self._leave.set()
        elif wish is Wish.PAUSE and self.wish is Wish.NONE:
            self.wish = wish
            self._stop.set()

    def interrupt(self) -> None:
        """Stop the video at its next step, because the worker stops; its state is stored."""
        self._stop.set()

    def abandon(self) -> None:
        """End the run at once, because the job belongs to another worker or the time is over."""
        self._leave.set()

    async def work(self) -> RunResult:
        """Run the job and return how the run ended; errors of the job are part of the result."""
        try:
            return await self._until_left(self._work())
        except SlipwayError as error:
            return self._failure(error)
        finally:
            self._stages.end()

    async def _until_left(self, work: Coroutine[Any, Any, RunResult]) -> RunResult:
        """Await the work, but end it when the run is to leave; closing a stream cancels it on the server."""
        task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self._leave.wait())
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return await task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            ending = Ending.REMOVED if self.wish in (Wish.DELETE, Wish.CANCEL) else Ending.INTERRUPTED
            return self._result(ending, message="the run was ended before its result")
        finally:
            leaving.cancel()

    async def _work(self) -> RunResult:
        self._stages.begin(PREPARING)
        request = await self._request()
        async with ProgressReporter(self._store, self.job.id, self._worker) as reporter:
            events = self._client.generate(
                request,
                model=self.job.model,
                timeout_s=getattr(request, "timeout_s", None),
                stop=self._stop if self._kind.can_stop else None,
                traceparent=self.job.traceparent or "",
                on_part=self._sections.add,
            )
            async with aclosing(events):
                outcome = await self._follow(events, reporter)
        if isinstance(outcome, Stopped):
            return await self._stopped(outcome)
        self._stages.begin(STORING)
        await store_video(self._contents, self.job, outcome, self._origin)
        return self._result(Ending.COMPLETED, cache_hit_rate=outcome.cache_hit_rate)

    async def _request(self) -> Any:
        pictures = {
            name: await self._content(picture.content)
            for name, picture in self._kind.pictures.items()
            if self.job.request.get(name) is not None
        }
        state = await self._content("state") if self.has_state else None
        if self.has_state and state is None:
            raise Unrecoverable(
                f"{self.job.id}: its state is missing in the contents; send the request again"
            )
        if state is not None:
            self._origin = await asyncio.to_thread(origin_of, state, self.job.model)
        return request_of(self._kind, self.job, pictures, state, self._every)

    async def _content(self, name: str) -> bytes | None:
        found = await self._contents.get(self.job.id, name)
        return None if found is None else found.data

    async def _follow(
        self, events: AsyncGenerator[Output, None], reporter: ProgressReporter
    ) -> Video | Frames | Stopped:
        """Take the events of the server until there is a result or a stop."""
        outcome: Video | Frames | Stopped | None = None
        async for event in events:
            if reporter.error is not None:
                raise reporter.error
            if isinstance(event, Progress):
                self._take_progress(event, reporter)
            elif isinstance(event, Checkpoint):
                await self._save_state(event.state, event.step)
            elif isinstance(event, ContactSheet | Video | Frames) and event.draft_step is not None:
                await store_draft(self._contents, self._store, self.job, self._worker, event)
            elif isinstance(event, Video | Frames | Stopped):
                outcome = event
        if outcome is None:
            raise Malformed(f"{self.job.model}: stream must end with a video or a stop, got neither")
        return outcome

    def _take_progress(self, event: Progress, reporter: ProgressReporter) -> None:
        if event.phase is not None:
            reporter.add(RunProgress(self._steps_seen, event.steps or self.job.steps, event.phase))
            return
        self._has_begun = True
        self._steps_seen = event.step
        is_last = event.step >= event.steps
        self._stages.begin(DECODING if is_last else DENOISING)
        phase = DECODING if is_last else DENOISING
        preview = (
            event.preview if event.preview is not None or not self._sections.take_new() else self._sections
        )
        reporter.add(RunProgress(event.step, event.steps, phase, preview))

    async def _save_state(self, state: bytes, step: int) -> None:
        self._has_begun = True
        if self._origin is None:
            self._origin = await asyncio.to_thread(origin_of, state, self.job.model)
        await self._contents.put(self.job.id, "state", state, "application/octet-stream")
        self.job = await self._store.state_saved(self.job.id, self._worker, step)

    async def _stopped(self, event: Stopped) -> RunResult:
        if event.state is None:
            raise Malformed(f"{self.job.model}: a stop must have a state, got none")
        await self._save_state(event.state, event.stopped_step)
        is_pause = event.stop_reason == ASKED or self.wish is Wish.PAUSE
        if is_pause:
            return self._result(Ending.STOPPED)
        return self._result(Ending.INTERRUPTED, message=f"the server stopped the video ({event.stop_reason})")

    def _failure(self, error: SlipwayError) -> RunResult:
        _log.warning("%s: %s: %s", self.job.id, type(error).__name__, error)
        if isinstance(error, InvalidRequest) and self.has_state and is_refused_state(error):
            # A server with another export cannot go on from the state, so the video begins again.
            return self._result(Ending.INTERRUPTED, code=STATE_REFUSED, message=str(error))
        if isinstance(error, Overloaded):
            return self._result(Ending.REFUSED, message=str(error))
        if isinstance(error, NotReady) and not self._has_begun:
            return self._result(Ending.REFUSED, code=SERVER_GONE, message=str(error))
        if isinstance(error, NotReady | Cancelled):
            return self._result(Ending.INTERRUPTED, message=str(error))
        return self._result(Ending.FAILED, code=error.code.lower(), message=str(error))

    def _result(self, ending: Ending, **values: Any) -> RunResult:
        self._stages.end()
        return RunResult(ending, stage_durations=self._stages.seconds, **values)


class _Stages:
    """Clock of a run's phases."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._current: tuple[str, float] | None = None

    def begin(self, name: str) -> None:
        if self._current is None or self._current[0] != name:
            self.end()
            self._current = name, time.monotonic()

    def end(self) -> None:
        if self._current is not None:
            name, start_s = self._current
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start_s
            self._current = None
