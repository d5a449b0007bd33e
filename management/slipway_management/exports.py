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
from slipway_management.worker import Job
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
        most_waiting: Largest number of queued jobs.
    """

    def __init__(self, limit_s: float = 1800.0, most_waiting: int = 32) -> None:
        self._limit_s = limit_s
        self._waiting: queue.Queue[Job | None] = queue.Queue(maxsize=most_waiting)
        self._states: dict[str, State] = {}
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[str] | None = None
        self._ending = False
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
                self._waiting.put_nowait(job)
            except queue.Full:
                raise Overloaded(
                    f"exports: at most {self._waiting.maxsize} must wait, got one more; try later"
                ) from None
            self._states[job.model] = State.QUEUED

    def state(self, model: str) -> State:
        """Return the state of a model's last export."""
        with self._lock:
            return self._states.get(model, State.IDLE)

    @contextlib.contextmanager
    def hold(self, model: str) -> Iterator[None]:
        """Prevent a model from being exported while the block runs.

        Raises:
            Busy: The model is held, is being exported, or its export is queued.
        """
        with self._lock:
            self._refuse_if_busy(model)
            self._held.add(model)
        try:
            yield
        finally:
            with self._lock:
                self._held.remove(model)

    def close(self) -> None:
        """Kill the running export, drop the queued ones, and end the thread."""
        with self._lock:
            self._ending = True
            if self._worker is not None:
                self._worker.kill()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(_END_S)

    def _refuse_if_busy(self, model: str) -> None:
        state = self._states.get(model, State.IDLE)
        if model in self._held or state in (State.QUEUED, State.RUNNING):
            doing = "deleted" if model in self._held else f"exported ({state.value})"
            raise Busy(f"exports: {model} must not be in work already, got it being {doing}; try later")

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None and not self._ending:
            self._become(job, State.RUNNING)
            error = self._export(job)
            if error is not None:
                # A killed worker could not record the failure itself.
                with contextlib.suppress(SlipwayError, OSError):
                    Library(Path(job.models)).record_failure(job.model, error)
            self._become(job, State.DONE if error is None else State.FAILED)

    def _become(self, job: Job, state: State) -> None:
        with self._lock:
            self._states[job.model] = state

    def _export(self, job: Job) -> str | None:
        """Run a job in a worker process and return why it failed, or None if it succeeded."""
        with self._lock:
            if self._ending:
                return "the management server ended"
            self._worker = worker = subprocess.Popen(
                [sys.executable, "-m", "slipway_management.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
                start_new_session=True,  # Ctrl-C in a terminal must reach only this process
            )
        timer = threading.Timer(self._limit_s, worker.kill)
        timer.start()
        try:
            answer = self._converse(worker, job)
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
            return f"the export must end within {self._limit_s:g} s, got no end; it was stopped"
        return f"the export's process must end by itself, got exit code {worker.returncode}"

    @staticmethod
    def _converse(worker: subprocess.Popen[str], job: Job) -> dict[str, str | None] | None:
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
