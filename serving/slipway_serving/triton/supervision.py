"""Supervision that restarts models and the server when their processes die, a limited number of times.

Triton 2.51 never replaces a Python process that died. It answers the requests of that instance with errors
while every health endpoint returns 200. So :class:`ModelSupervisor` watches the processes: a ready model with
fewer processes than instances has lost one. It is reloaded with all of its instances, beside the old ones, so
models that depend on it keep working and other models are not affected. When `tritonserver` itself dies, or
hangs while it dies, :class:`Supervisor` restarts it. Each step is a line of JSON in the log
(:func:`slipway_serving.triton.server_log.record`).
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
from slipway_serving.system.server_processes import crash_signal, describe_exit, is_stopped, stubs
from slipway_serving.triton.control import ModelControl

DEATHS = 5
"""Number of deaths in a row that ends the restarts: a model stays unloaded, a server stays down."""
MODEL_STEADY_S = 5.0
"""Seconds of service after which the next death of a model is counted as the first of a row."""
SERVER_STEADY_S = 60.0
"""Seconds of service after which the next death of a server is counted as the first of a row."""
REPLACED_IDLE_S = 5.0
"""Idle seconds after which the old processes of a reloaded model are ended. Triton ends one instance after
another, up to 2 s each, and never ends one if it still counts a request that died with another process."""
DYING_S = 5.0
"""Seconds after which a `tritonserver` that is dying of a signal and has not ended is killed."""
STOPPED_S = 0.4
"""Seconds after which a model's process that a signal has stopped is killed. Triton gives such a process up
after 1 s, so the limit must be shorter."""
FOLDER_MISSING_S = 60.0
"""Seconds after which a model that died is given up if its folder is still missing."""
LOOK_S = 0.25
"""Seconds between two checks of the processes."""
_LOOKS_FOR_DYING = 20
"""Number of checks between two scans of all threads of `tritonserver`; a scan of its thousand threads takes
13 ms of a core."""


class Deaths:
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

    def died(self) -> None:
        """Count a death, or a start that failed."""
        since = self._served_since_s
        steady = since is not None and self._clock() - since >= self._steady_s
        self.count = 1 if steady else self.count + 1
        self._served_since_s = None

    def serves(self) -> None:
        """Record that the model or server was started and serves."""
        self._served_since_s = self._clock()

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next start: 0 after the first death, then 1, 2, 4, ..."""
        return 0.0 if self.count < 2 else 2.0 ** (self.count - 2)

    @property
    def too_many(self) -> bool:
        """True if there must not be another start."""
        return self.count >= DEATHS


def has_folders(models: Sequence[Path], closing: threading.Event) -> bool:
    """Return True if all model folders exist, after a wait in which missing ones may come back.

    An operator who replaces a model by moving folders leaves it without a folder for a moment, in which
    Triton cannot load it.

    Args:
        models: Folders of the models.
        closing: Event that ends the wait.
    """
    deadline = time.monotonic() + FOLDER_MISSING_S
    while not all(model.is_dir() for model in models):
        if time.monotonic() >= deadline or closing.wait(LOOK_S):
            return False
    return True


class Supervisor:
    """Thread that restarts one server when it dies and supervises its models until it is closed.

    Args:
        process: Function that returns the current `tritonserver` process.
        look_after: Function that returns a supervisor for the models of the current process.
        restart: Function that starts another process; it returns True if the process serves.
        tell: Callback that receives the name of an event and its facts.
        keep_watcher: Function that starts a new watcher if the server's watcher has died.

    Attributes:
        failure: Error that ended supervision: the server died too often, or its supervisor itself failed;
            None while the server is supervised.
        closing: Event that is set once the supervisor is being closed.
    """

    def __init__(
        self,
        process: Callable[[], subprocess.Popen[bytes] | None],
        look_after: Callable[[], ModelSupervisor],
        restart: Callable[[], bool],
        tell: Callable[..., object],
        keep_watcher: Callable[[], object] = lambda: None,
    ) -> None:
        self._process, self._look_after, self._restart, self._tell = process, look_after, restart, tell
        self._keep_watcher = keep_watcher
        self._deaths = Deaths(SERVER_STEADY_S)
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
        except Exception as error:  # noqa: BLE001 - a server that nobody looks after must not seem to be well
            self._tell("supervisor_failed", traceback="".join(traceback.format_exception(error)))
            self.failure = Unrecoverable(
                f"server: its supervisor must not end, got {type(error).__name__}: {error}; this is a defect,"
                " whose traceback is in the server's log; start the server again"
            )

    def _supervise(self) -> None:
        while self.failure is None and not self.closing.is_set():
            reason = self._look_until_death()
            while (code := self._code()) is not None and self.failure is None and not self.closing.is_set():
                self._died(reason or describe_exit(code))
                reason = ""

    def _look_until_death(self) -> str:
        """Supervise the server until it dies or is stopped; return the reason of its death, "" if unknown."""
        models, looks, reason = self._look_after(), 0, ""
        try:
            while self._code() is None and not self.closing.wait(LOOK_S):
                models.look()
                self._keep_watcher()
                looks += 1
                if looks % _LOOKS_FOR_DYING == 0:
                    reason = self._killed_of()
        finally:
            models.close()
        return reason

    def _killed_of(self) -> str:
        """Kill a process that hangs while it dies of a signal; return the reason of its death, or ""."""
        process = self._process()
        number = crash_signal(process.pid) if process is not None else None
        if process is None or number is None:
            return ""
        try:
            process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"{number.name}, killed as it stood still for {DYING_S:g} s"
        return ""

    def _code(self) -> int | None:
        """Return the return code of the process; None while it runs."""
        process = self._process()
        return process.poll() if process is not None else None

    def _died(self, reason: str) -> None:
        """Restart the server, or give it up."""
        self._deaths.died()
        self._tell("server_died", deaths=self._deaths.count, reason=reason)
        if self._deaths.too_many:
            self._tell("server_given_up", deaths=self._deaths.count, reason=reason)
            self.failure = Unrecoverable(
                f"server: tritonserver must not end by itself, got {self._deaths.count} deaths in a row, the"
                f" last by {reason}; try its log, which says what it did"
            )
        elif not self.closing.wait(self._deaths.wait_s) and self._restart():
            self._deaths.serves()


class ModelSupervisor:
    """Supervisor that reloads the models of one running `tritonserver` when their processes die.

    Calls to the server run in threads of their own, since a server that hangs does not answer: one thread
    looks for models that lack a process, and each reload of a model has its own thread.

    Args:
        pid: Process ID of `tritonserver`.
        repository: Folder of the model repository.
        models: Names of the models that it has loaded; each may have lost a process already.
        control: Client that loads and unloads its models.
        folder: Runtime folder of the server (:mod:`slipway_serving.system.server_folder`).
        tell: Callback that receives the name of an event and its facts.
    """

    def __init__(
        self,
        pid: int,
        repository: Path,
        models: Iterable[str],
        control: ModelControl,
        folder: Path,
        tell: Callable[..., object],
    ) -> None:
        self._pid, self._control, self._folder, self._tell = pid, control, folder, tell
        self._known = stubs(pid)
        self._repository = repository
        self._suspects = dict.fromkeys(models, 0)
        self._deaths: dict[str, Deaths] = {}
        self._healing: dict[str, threading.Thread] = {}
        self._replaced: dict[int, float] = {}
        self._stopped: dict[int, float] = {}
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread("suspects", self._ask_for_suspects)

    def look(self) -> None:
        """Record processes that ended, and end processes that must not continue.

        Raises:
            Exception: A thread of this object ended with this error.
        """
        if self._error is not None:
            raise self._error
        now = stubs(self._pid)
        for pid, model in self._known.items():
            if pid not in now:
                self._suspects.setdefault(model, 0)
        self._known = now
        self._end_replaced(now)
        self._kill_stopped(now)

    def close(self) -> None:
        """Stop all further reloads and reports."""
        self._closed.set()

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread; :meth:`look` raises the exception that ends it."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the supervisor's own thread raises it
                self._error = error

        thread = threading.Thread(target=run, name=f"{name}-supervision", daemon=True)
        thread.start()
        return thread

    def _ask_for_suspects(self) -> None:
        """Reload the models that lack a process, each in a thread of its own."""
        while not self._closed.wait(LOOK_S):
            for model in list(self._suspects):
                if (thread := self._healing.get(model)) is not None and thread.is_alive():
                    continue
                lacking = self._lacks(model)
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
                    self._healing[model] = self._thread(model, partial(self._heal, model))

    def _kill_stopped(self, now: Mapping[int, str]) -> None:
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
                self._say("stopped_process_killed", model=now[pid], pid=pid)

    def _lacks(self, model: str) -> bool | None:
        """Return True if a ready model has fewer processes than instances; None if the server cannot say."""
        try:
            instances = self._control.instances(model)
        except SlipwayError:
            return None
        own = [pid for pid, name in self._known.items() if name == model and pid not in self._replaced]
        return len(own) < instances

    def _end_replaced(self, now: Mapping[int, str]) -> None:
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
                self._say("replaced_process_ended", model=now[pid], pid=pid)

    def _heal(self, model: str) -> None:
        """Reload a model until it serves or has died too often."""
        deaths = self._deaths.setdefault(model, Deaths(MODEL_STEADY_S))
        deaths.died()
        self._say("model_died", model=model, deaths=deaths.count)
        reason = "its process ends soon after each start"
        while not deaths.too_many and not self._closed.wait(deaths.wait_s):
            if not has_folders([self._repository / model], self._closed):
                reason = f"its folder {self._repository / model} is missing"
                break
            started_s = time.monotonic()
            before = [pid for pid, name in stubs(self._pid).items() if name == model]
            restarts = process_state.count_restart(self._folder, model)
            try:
                self._control.replace(model, f"{self._pid}-{time.monotonic_ns()}")
            except SlipwayError as error:
                if self._closed.is_set():
                    return
                deaths.died()
                reason = str(error)
                self._say("model_start_failed", model=model, deaths=deaths.count, reason=reason)
            else:
                deaths.serves()
                self._replaced.update(dict.fromkeys(before, time.monotonic()))
                after_s = round(time.monotonic() - started_s, 3)
                self._say("model_restarted", model=model, restarts=restarts, after_s=after_s)
                self._suspects.setdefault(model, 0)
                return
        if not self._closed.is_set():
            del self._deaths[model]
            with contextlib.suppress(SlipwayError):  # The server may be shutting down.
                self._control.give_up(model)
            self._say("model_given_up", model=model, deaths=deaths.count, reason=reason)

    def _say(self, event: str, **facts: object) -> None:
        if not self._closed.is_set():
            self._tell(event, **facts)
