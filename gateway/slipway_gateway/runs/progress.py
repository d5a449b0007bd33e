"""Reports of a run's progress to the database: each new phase at once, and up to four steps a second.

A run may receive events faster than a database takes them. The reporter writes one at a time, the newest, and
leaves out what came meanwhile. So neither a slow database nor many fast steps slow a video down, and no queue
grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from slipway_gateway.jobs.store import JobStore
from slipway_gateway.runs.sections import SectionSheet
from slipway_serving.protocol.errors import SlipwayError

_PREVIEW_QUALITY = 80
_INTERVAL_S = 0.25


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        step: Number of finished steps.
        steps: Number of steps.
        phase: Stage of the run.
        preview: Picture of the current state, [height, width, 3], uint8, or sections to make it from, or
            None.
    """

    step: int
    steps: int
    phase: str
    preview: NDArray[np.uint8] | SectionSheet | None = None


class ProgressReporter:
    """Writer of one run's progress; a context manager that ends with the newest progress written.

    Args:
        store: Store of the jobs.
        job_id: Id of the job.
        worker: Name of the worker.

    Attributes:
        error: Error of the last write, which ends the reports; None if there was none.
    """

    def __init__(self, store: JobStore, job_id: str, worker: str) -> None:
        self._store, self._job_id, self._worker = store, job_id, worker
        self._newest: RunProgress | None = None
        self._phase: str | None = None
        self._due_s = 0.0
        self._changed = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self.error: SlipwayError | None = None

    async def __aenter__(self) -> ProgressReporter:
        self._task = asyncio.create_task(self._write())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._is_closing = True
        self._changed.set()
        if error is not None:
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def add(self, progress: RunProgress) -> None:
        """Replace the progress that is written next; a picture that was not written yet stays."""
        if progress.preview is None and self._newest is not None:
            progress = replace(progress, preview=self._newest.preview)
        self._newest = progress
        self._changed.set()

    async def _write(self) -> None:
        while not (self._is_closing and self._newest is None):
            await self._changed.wait()
            self._changed.clear()
            await self._until_due()
            progress, self._newest = self._newest, None
            if progress is None:
                continue
            self._phase, self._due_s = progress.phase, time.monotonic() + _INTERVAL_S
            preview = None
            if progress.preview is not None:
                preview = await asyncio.to_thread(_jpeg, progress.preview)
            try:
                await self._store.report(
                    self._job_id,
                    self._worker,
                    step=progress.step,
                    steps=progress.steps,
                    phase=progress.phase,
                    preview=preview,
                )
            except SlipwayError as error:
                self.error = error
                return

    async def _until_due(self) -> None:
        """Wait until one more step of a phase may be written; a new phase and the end do not wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._due_s - time.monotonic()):
                while self._newest is not None and self._newest.phase == self._phase and not self._is_closing:
                    await self._changed.wait()
                    self._changed.clear()


def _jpeg(preview: NDArray[np.uint8] | SectionSheet) -> bytes:
    from PIL import Image

    pixels = preview.picture() if isinstance(preview, SectionSheet) else preview
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_PREVIEW_QUALITY)
    return file.getvalue()
