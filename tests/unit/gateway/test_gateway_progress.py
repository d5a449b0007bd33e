"""Reports of a run's progress: which are written, and which are left out."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from slipway_gateway.jobs.store import JobStore
from slipway_gateway.runs import progress as module
from slipway_gateway.runs.progress import ProgressReporter, RunProgress


class Written:
    """A store that only takes reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, str]] = []
        self.pictures: list[int] = []
        self.changed = asyncio.Event()

    async def report(self, job_id: str, worker: str, **values: Any) -> None:
        self.reports.append((values["step"], values["phase"]))
        self.pictures += [] if values["preview"] is None else [values["step"]]
        self.changed.set()

    async def until(self, number: int) -> None:
        """Wait until so many reports are written."""
        async with asyncio.timeout(30):
            while len(self.reports) < number:
                self.changed.clear()
                await self.changed.wait()


def reporter(store: Written) -> ProgressReporter:
    return ProgressReporter(cast("JobStore", store), "video_1", "worker")


@pytest.fixture
def long_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL_S", 3600.0)


async def test_phases_are_written_at_once_and_their_steps_are_gathered(long_interval: None) -> None:
    store = Written()
    async with reporter(store) as reports:
        reports.add(RunProgress(1, 9, "denoising"))
        await store.until(1)
        for step in range(2, 9):
            reports.add(RunProgress(step, 9, "denoising"))
            await asyncio.sleep(0)
        reports.add(RunProgress(9, 9, "decoding"))
        await store.until(2)
    assert store.reports == [(1, "denoising"), (9, "decoding")]


async def test_last_step_is_written_when_the_run_ends(long_interval: None) -> None:
    store = Written()
    async with reporter(store) as reports:
        for step in range(1, 4):
            reports.add(RunProgress(step, 9, "denoising"))
            await asyncio.sleep(0.01)
    assert store.reports == [(1, "denoising"), (3, "denoising")]


async def test_picture_is_written_with_a_later_step_when_its_own_was_left_out(long_interval: None) -> None:
    store = Written()
    async with reporter(store) as reports:
        for step in range(1, 5):
            picture = np.zeros((16, 16, 3), np.uint8) if step == 2 else None
            reports.add(RunProgress(step, 9, "denoising", picture))
            await asyncio.sleep(0.01)
    assert (store.reports, store.pictures) == ([(1, "denoising"), (4, "denoising")], [4])


async def test_newest_step_is_written_when_the_interval_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL_S", 0.05)
    store = Written()
    async with reporter(store) as reports:
        for step in range(1, 4):
            reports.add(RunProgress(step, 9, "denoising"))
            await asyncio.sleep(0)
        await store.until(2)
        reports.add(RunProgress(4, 9, "denoising"))
        await store.until(3)
    assert [step for step, _ in store.reports][1:] == [3, 4]
