"""Queue that runs exports one after the other, each in its own worker process.

:class:`Exports` accepts jobs into a bounded queue and runs them in turn. A worker process ends with this
process. If a worker dies or takes too long, the export has failed and the model's status says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from slipway_export.trained_models import Library
from slipway_gateway.trained_models.worker import Job
from slipway_serving.protocol.errors import Overloaded, SlipwayError

_END_S = 10.0


class State(StrEnum):
    """State of a model's last export since this process started."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Busy(Overloaded):
    """Error: the model is in work (queued for export, being exported or being deleted)."""


class Exports:
    """Queue of exports and the thread that runs them.

    Args:
        limit_s: Longest time for one export, in seconds.
        max_queued: Largest number of queued jobs.
    """

    def __init__(self, limit_s: float = 1800.0, max_queued: int = 32) -> None:
        self._limit_s = limit_s
        self._queue: queue.Queue[Job | None] = queue.Queue(maxsize=max_queued)
        self._states: dict[str, State] = {}
        self._reserved: set[str] = set()
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="exports", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Put an export into the queue.

        Raises:
            Busy: The model is held, is being exported, or its export is queued.
            Overloaded: The queue is full.
        """
        with self._lock:
            self._refuse_if_busy(job.model)
            try:
                self._queue.put_nowait(job)
            except queue.Full:
                raise Overloaded(
                    f"exports: the queue is full ({self._queue.maxsize} exports are waiting); try again later"
                ) from None
            self._states[job.model] = State.QUEUED

    def state(self, model: str) -> State:
        """Return the state of a model's last export."""
        with self._lock:
            return self._states.get(model, State.IDLE)

    @contextlib.contextmanager
    def reserve(self, model: str) -> Iterator[None]:
        """Prevent a model from being exported while the block runs.

        Raises:
            Busy: The model is held, is being exported, or its export is queued.
        """
        with self._lock:
            self._refuse_if_busy(model)
            self._reserved.add(model)
        try:
            yield
        finally:
            with self._lock:
                self._reserved.remove(model)

    def close(self) -> None:
        """Kill the running export, drop the queued ones, and end the thread."""
        with self._lock:
            self._closing = True
            if self._worker is not None:
                self._worker.kill()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(_END_S)

    def _refuse_if_busy(self, model: str) -> None:
        state = self._states.get(model, State.IDLE)
        if model in self._reserved or state in (State.QUEUED, State.RUNNING):
            activity = "deleted" if model in self._reserved else f"exported ({state.value})"
            raise Busy(f"exports: {model} is being {activity}; try again later")

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._closing:
            self._set_state(job, State.RUNNING)
            error = self._export(job)
            if error is not None:
                # A killed worker could not record the failure itself.
                with contextlib.suppress(SlipwayError, OSError):
                    Library(Path(job.models)).record_failure(job.model, error)
            self._set_state(job, State.DONE if error is None else State.FAILED)

    def _set_state(self, job: Job, state: State) -> None:
        with self._lock:
            self._states[job.model] = state

    def _export(self, job: Job) -> str | None:
        """Run a job in a worker process and return why it failed, or None if it succeeded."""
        with self._lock:
            if self._closing:
                return "the management server is shutting down"
            self._worker = worker = subprocess.Popen(
                [sys.executable, "-m", "slipway_gateway.trained_models.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
                start_new_session=True,  # Ctrl-C in a terminal must reach only this process
            )
        timer = threading.Timer(self._limit_s, worker.kill)
        timer.start()
        try:
            answer = self._run_worker(worker, job)
        finally:
            expired = not timer.is_alive()
            timer.cancel()
            with self._lock:
                worker.kill()
                worker.wait()
                self._worker = None
        if answer is not None:
            return answer.get("error")
        if expired:
            return f"the export did not finish within {self._limit_s:g} s and was stopped"
        return (
            f"the export's process ended with exit code {worker.returncode}; see the log of `slipway manage`"
        )

    @staticmethod
    def _run_worker(worker: subprocess.Popen[str], job: Job) -> dict[str, str | None] | None:
        """Send a worker its job and wait for its answer; return None if it ends without an answer."""
        if worker.stdin is None or worker.stdout is None:
            raise RuntimeError("the worker has no standard input and output")
        with contextlib.suppress(BrokenPipeError), worker.stdin, worker.stdout:
            worker.stdin.write(job.to_line())
            worker.stdin.flush()
            line = worker.stdout.readline()
            with contextlib.suppress(ValueError):
                answer: dict[str, str | None] = json.loads(line)
                return answer
        return None
