"""Reports of a run's progress to the database, never more than one write at a time.

A run receives events faster than a database may take them. The reporter writes the newest progress and leaves
out what came meanwhile, so a slow database does not slow a video down, and no queue grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from slipway_gateway.jobs.store import JobStore
from slipway_serving.protocol.errors import SlipwayError

_PREVIEW_QUALITY = 80


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run.

    Attributes:
        step: Number of finished steps.
        steps: Number of steps.
        phase: Stage of the run.
        preview: Picture of the current state, [height, width, 3], uint8, or None.
    """

    step: int
    steps: int
    phase: str
    preview: NDArray[np.uint8] | None = None


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
        """Replace the progress that is written next."""
        self._newest = progress
        self._changed.set()

    async def _write(self) -> None:
        while not (self._is_closing and self._newest is None):
            await self._changed.wait()
            self._changed.clear()
            progress, self._newest = self._newest, None
            if progress is None:
                continue
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


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_PREVIEW_QUALITY)
    return file.getvalue()
