"""Supervision that restarts models and the server when their processes die, a limited number of times.

Triton 2.51 never replaces a Python process that died. It answers the requests of that instance with errors
while every health endpoint returns 200. So :class:`ModelSupervisor` watches the processes: a ready model with
fewer processes than instances has lost one. It is reloaded with all of its instances, beside the old ones, so
models that depend on it keep working and other models are not affected. A model of a C++ backend has no
process: it runs inside `tritonserver`, and dies and returns with it. When `tritonserver` itself dies, or
hangs while it dies, :class:`Supervisor` restarts it. Each step is a line of JSON in the log
(:func:`slipway_serving.triton.server_log.append_event`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from slipway_serving.protocol.errors import SlipwayError, Unrecoverable
from slipway_serving.system import process_state
from slipway_serving.system.process_state import ProcessStage
from slipway_serving.system.server_processes import (
    ServerResources,
    crash_signal,
    describe_exit,
    is_stopped,
    stubs,
)
from slipway_serving.triton.control import ModelControl

MAX_DEATHS = 5
"""Number of deaths in a row that ends the restarts: a model stays unloaded, a server stays down."""
MODEL_STEADY_S = 5.0
"""Seconds of service after which the next death of a model is counted as the first of a row."""
SERVER_STEADY_S = 60.0
"""Seconds of service after which the next death of a server is counted as the first of a row."""
REPLACED_IDLE_S = 5.0
"""Idle seconds after which the old processes of a reloaded model are ended. Triton ends one instance after
another, up to 2 s each, and never ends one if it still counts a request that died with another process."""
CRASH_TIMEOUT_S = 5.0
"""Seconds after which a `tritonserver` that is crashing and has not ended is killed."""
STOPPED_S = 0.4
"""Seconds after which a model's process that a signal has stopped is killed. Triton gives such a process up
after 1 s, so the limit must be shorter."""
FOLDER_MISSING_S = 60.0
"""Seconds after which a model that died is given up if its folder is still missing."""
CHECK_INTERVAL_S = 0.25
"""Seconds between two checks of the processes."""
_CHECKS_PER_CRASH_SCAN = 20
"""Number of checks between two scans of all threads of `tritonserver`; a scan of its thousand threads takes
13 ms of a core."""


class DeathCounter:
    """Counter of the deaths in a row of a model or server that is restarted after each death.

    Args:
        steady_s: Time of service after which the next death is the first of a new row, in seconds.
        clock: Monotonic clock, in seconds.

    Attributes:
        count: Number of deaths in the current row.
    """

    def __init__(self, steady_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._steady_s, self._clock = steady_s, clock
        self._served_since_s: float | None = clock()
        self.count = 0

    def record_death(self) -> None:
        """Count a death, or a start that failed."""
        since = self._served_since_s
        steady = since is not None and self._clock() - since >= self._steady_s
        self.count = 1 if steady else self.count + 1
        self._served_since_s = None

    def record_start(self) -> None:
        """Record that the model or server was started and serves."""
        self._served_since_s = self._clock()

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next start: 0 after the first death, then 1, 2, 4, ..."""
        return 0.0 if self.count < 2 else 2.0 ** (self.count - 2)

    @property
    def is_limit_reached(self) -> bool:
        """True if there must not be another start."""
        return self.count >= MAX_DEATHS


def wait_for_folders(models: Sequence[Path], closing: threading.Event) -> bool:
    """Return True if all model folders exist, after a wait in which missing ones may come back.

    An operator who replaces a model by moving folders leaves it without a folder for a moment, in which
    Triton cannot load it.

    Args:
        models: Folders of the models.
        closing: Event that ends the wait.
    """
    deadline = time.monotonic() + FOLDER_MISSING_S
    while not all(model.is_dir() for model in models):
        if time.monotonic() >= deadline or closing.wait(CHECK_INTERVAL_S):
            return False
    return True


class Supervisor:
    """Thread that restarts one server when it dies and supervises its models until it is closed.

    Args:
        process: Function that returns the current `tritonserver` process.
        supervise_models: Function that returns a supervisor for the models of the current process.
        restart: Function that starts another process; it returns True if the process serves.
        record_event: Callback that receives the name of an event and its facts.
        restart_watcher: Function that starts a new watcher if the server's watcher has died.

    Attributes:
        failure: Error that ended supervision: the server died too often, or its supervisor itself failed;
            None while the server is supervised.
        closing: Event that is set once the supervisor is being closed.
    """

    def __init__(
        self,
        process: Callable[[], subprocess.Popen[bytes] | None],
        supervise_models: Callable[[], ModelSupervisor],
        restart: Callable[[], bool],
        record_event: Callable[..., object],
        restart_watcher: Callable[[], object] = lambda: None,
    ) -> None:
        self._process, self._supervise_models, self._restart = process, supervise_models, restart
        self._record_event, self._restart_watcher = record_event, restart_watcher
        self._deaths = DeathCounter(SERVER_STEADY_S)
        self.failure: SlipwayError | None = None
        self.closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop all further starts; return when no start is in progress."""
        self.closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._supervise()
        except Exception as error:  # noqa: BLE001 - a server without supervision must not look healthy
            self._record_event("supervisor_failed", traceback="".join(traceback.format_exception(error)))
            self.failure = Unrecoverable(
                f"server: its supervision failed with {type(error).__name__}: {error}; start the server"
                " again, and report the defect with the traceback in the server's log"
            )

    def _supervise(self) -> None:
        while self.failure is None and not self.closing.is_set():
            reason = self._supervise_until_death()
            while self.failure is None and not self.closing.is_set():
                if (code := self._exit_code()) is None:
                    break
                self._handle_death(reason or describe_exit(code))
                reason = ""

    def _supervise_until_death(self) -> str:
        """Supervise the server until it dies or is stopped; return the reason of its death, "" if unknown."""
        models, checks, reason = self._supervise_models(), 0, ""
        try:
            while self._exit_code() is None and not self.closing.wait(CHECK_INTERVAL_S):
                models.check()
                self._restart_watcher()
                checks += 1
                if checks % _CHECKS_PER_CRASH_SCAN == 0:
                    reason = self._kill_if_crashing()
        finally:
            models.close()
        return reason

    def _kill_if_crashing(self) -> str:
        """Kill a process that hangs while it crashes; return the reason of its death, or ""."""
        process = self._process()
        number = crash_signal(process.pid) if process is not None else None
        if process is None or number is None:
            return ""
        try:
            process.wait(CRASH_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"{number.name}, killed after it hung for {CRASH_TIMEOUT_S:g} s"
        return ""

    def _exit_code(self) -> int | None:
        """Return the return code of the process; None while it runs."""
        process = self._process()
        return process.poll() if process is not None else None

    def _handle_death(self, reason: str) -> None:
        """Restart the server after a death, or stop supervision after too many deaths."""
        self._deaths.record_death()
        self._record_event("server_died", deaths=self._deaths.count, reason=reason)
        if self._deaths.is_limit_reached:
            self._record_event("server_given_up", deaths=self._deaths.count, reason=reason)
            self.failure = Unrecoverable(
                f"server: tritonserver died {self._deaths.count} times in a row and is not restarted, the"
                f" last time by {reason}; see the server's log"
            )
        elif not self.closing.wait(self._deaths.wait_s) and self._restart():
            self._deaths.record_start()


class ModelSupervisor:
    """Supervisor that reloads the models of one running `tritonserver` when their processes die.

    Calls to the server run in threads of their own, since a server that hangs does not answer: one thread
    looks for models that lack a process, and each reload of a model has its own thread.

    Args:
        resources: Resources of the server: its process and its runtime folder.
        repository: Folder of the model repository; None if Triton reads it from a URL.
        models: Names of the models that it has loaded; each may have lost a process already.
        control: Client that loads and unloads its models.
        record_event: Callback that receives the name of an event and its facts.
    """

    def __init__(
        self,
        resources: ServerResources,
        repository: Path | None,
        models: Iterable[str],
        control: ModelControl,
        record_event: Callable[..., object],
    ) -> None:
        self._pid, self._folder = resources.pid, resources.runtime_folder
        self._library_backends = resources.library_backends
        self._control, self._record_event = control, record_event
        self._processes = stubs(self._pid)
        self._repository = repository
        self._suspects = dict.fromkeys(models, 0)
        self._deaths: dict[str, DeathCounter] = {}
        self._restart_threads: dict[str, threading.Thread] = {}
        self._replaced: dict[int, float] = {}
        self._stopped: dict[int, float] = {}
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread("suspects", self._reload_incomplete_models)

    def check(self) -> None:
        """Record processes that ended, and end processes that must not continue.

        Raises:
            Exception: A thread of this object ended with this error.
        """
        if self._error is not None:
            raise self._error
        now = stubs(self._pid)
        for pid, model in self._processes.items():
            if pid not in now:
                self._suspects.setdefault(model, 0)
        self._processes = now
        self._end_replaced_processes(now)
        self._kill_stopped_processes(now)

    def close(self) -> None:
        """Stop all further reloads and reports."""
        self._closed.set()

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread; :meth:`check` raises the exception that ends it."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the supervisor's own thread raises it
                self._error = error

        thread = threading.Thread(target=run, name=f"{name}-supervision", daemon=True)
        thread.start()
        return thread

    def _reload_incomplete_models(self) -> None:
        """Reload the models that lack a process, each in a thread of its own."""
        while not self._closed.wait(CHECK_INTERVAL_S):
            for model in list(self._suspects):
                if (thread := self._restart_threads.get(model)) is not None and thread.is_alive():
                    continue
                lacking = self._lacks_process(model)
                if self._closed.is_set():
                    return
                if lacking is None:
                    continue
                # A model that an operator loads or unloads also changes its processes, so only a process that
                # is missing in two checks counts.
                self._suspects[model] += 1
                if not lacking:
                    del self._suspects[model]
                elif self._suspects[model] == 2:
                    del self._suspects[model]
                    self._restart_threads[model] = self._thread(model, partial(self._restart_model, model))

    def _kill_stopped_processes(self, now: Mapping[int, str]) -> None:
        """Kill processes that a signal has stopped, before they continue.

        Triton gives up a process that does not run for a second while it has a request. If the process then
        continues and answers, Triton uses memory that it has freed, and dies.
        """
        stopped = [pid for pid in now if is_stopped(pid)]
        self._stopped = {pid: self._stopped.get(pid, time.monotonic()) for pid in stopped}
        for pid, since_s in self._stopped.items():
            if time.monotonic() - since_s >= STOPPED_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                self._record("stopped_process_killed", model=now[pid], pid=pid)

    def _lacks_process(self, model: str) -> bool | None:
        """Return True if a ready model lacks a process; None if the server cannot say."""
        try:
            wanted = self._control.count_processes(model, self._library_backends)
        except SlipwayError:
            return None
        own = [pid for pid, name in self._processes.items() if name == model and pid not in self._replaced]
        return len(own) < wanted

    def _end_replaced_processes(self, now: Mapping[int, str]) -> None:
        """End the old processes of reloaded models once they are idle."""
        if not self._replaced:
            return
        idle = {
            work.pid
            for work in process_state.running_work(self._folder)
            if not work.requests and work.stage is ProcessStage.SERVING
        }
        for pid, worked_s in list(self._replaced.items()):
            if pid not in now:
                del self._replaced[pid]
            elif pid not in idle:
                self._replaced[pid] = time.monotonic()
            elif time.monotonic() - worked_s > REPLACED_IDLE_S:
                process_state.end_process(self._folder, pid)
                self._record("replaced_process_ended", model=now[pid], pid=pid)

    def _restart_model(self, model: str) -> None:
        """Reload a model until it serves or has died too often; probes fail meanwhile."""
        with process_state.reloading(self._folder, model):
            self._reload_model(model)

    def _reload_model(self, model: str) -> None:
        """Reload a model until it serves or has died too often."""
        deaths = self._deaths.setdefault(model, DeathCounter(MODEL_STEADY_S))
        deaths.record_death()
        self._record("model_died", model=model, deaths=deaths.count)
        reason = "its process dies soon after each start"
        while not deaths.is_limit_reached and not self._closed.wait(deaths.wait_s):
            folder = None if self._repository is None else self._repository / model
            if folder is not None and not wait_for_folders([folder], self._closed):
                reason = f"its folder {folder} is missing"
                break
            started_s = time.monotonic()
            before = [pid for pid, name in stubs(self._pid).items() if name == model]
            restarts = process_state.count_restart(self._folder, model)
            try:
                self._control.force_reload(model, f"{self._pid}-{time.monotonic_ns()}")
            except SlipwayError as error:
                if self._closed.is_set():
                    return
                deaths.record_death()
                reason = str(error)
                self._record("model_start_failed", model=model, deaths=deaths.count, reason=reason)
            else:
                deaths.record_start()
                self._replaced.update(dict.fromkeys(before, time.monotonic()))
                after_s = round(time.monotonic() - started_s, 3)
                self._record("model_restarted", model=model, restarts=restarts, after_s=after_s)
                self._suspects.setdefault(model, 0)
                return
        if not self._closed.is_set():
            del self._deaths[model]
            with contextlib.suppress(SlipwayError):  # The server may be shutting down.
                self._control.mark_failed(model)
            self._record("model_given_up", model=model, deaths=deaths.count, reason=reason)

    def _record(self, event: str, **facts: object) -> None:
        if not self._closed.is_set():
            self._record_event(event, **facts)
