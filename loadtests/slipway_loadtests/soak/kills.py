"""Kill processes of served models from time to time, and decide which failed requests each kill explains.

The server reports each death and each restart (:class:`slipway_serving.triton.server.Server`, `warn`). A kill
explains a failure if the request was in progress between the kill and the model's return, and if its code is
one of :data:`EXPLAINED`. Triton 2.51 sometimes dies itself, if a call is cut at the moment of its last
answer, or if a process is killed while it answers (docs/operate/recovery.md). Such a death explains
failures as a kill does, and is counted separately.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slipway_loadtests.load.outcomes import now_s
from slipway_loadtests.soak.traffic import FAILED, Sent
from slipway_serving.protocol.errors import NotReady, SessionLost
from slipway_serving.system.server_processes import stubs
from slipway_serving.triton.supervision import MODEL_STEADY_S

EXPLAINED = (NotReady.code, SessionLost.code)
"""Error codes of a request whose process was killed: no answer, or a session lost with the process."""
TRITON = "tritonserver"
"""Name in place of the model if the whole server died."""
# Longest time between a death and the server's report of it.
_NOTICED_S = 2.0
# Time after the reported return of a model in which requests may still fail because of the kill.
_SLACK_S = 1.0


@dataclass(frozen=True)
class Kill:
    """A process that was killed, or a `tritonserver` that died.

    Attributes:
        model: Model of the process; :data:`TRITON` for all models.
        at_s: Time of the kill, in seconds since the epoch.
        back_s: Time at which the model had restarted, in seconds since the epoch; None until then.
    """

    model: str
    at_s: float
    back_s: float | None = None

    def explains(self, sent: Sent) -> bool:
        """Return whether this kill can be the cause of a request's failure."""
        until_s = float("inf") if self.back_s is None else self.back_s + _SLACK_S
        in_time = sent.begun_s <= until_s and sent.ended_s >= self.at_s
        return sent.ended == FAILED and sent.code in EXPLAINED and in_time


class Kills:
    """Kills of one run; safe to use from several threads.

    Args:
        every: Number of requests between two kills; None kills nothing.
        random: Random generator that chooses the process.

    Attributes:
        done: Kills so far.
        deaths: Deaths of `tritonserver`.
        words: Messages of the server about deaths and restarts.
    """

    def __init__(self, every: int | None, random: np.random.Generator) -> None:
        self._every, self._random, self._lock = every, random, threading.Lock()
        self.done: list[Kill] = []
        self.deaths: list[Kill] = []
        self.words: list[str] = []

    def told(self, words: str) -> None:
        """Record a message of the server about a death or a restart."""
        with self._lock:
            self.words.append(words)
            if words.startswith("server died:"):
                self.deaths.append(Kill(TRITON, now_s() - _NOTICED_S))
            elif self.deaths and words.startswith("server restarted:"):
                self.deaths[-1] = replace(self.deaths[-1], back_s=now_s())
                # The models that had not restarted yet have restarted together with the server.
                self.done = [kill if kill.back_s else replace(kill, back_s=now_s()) for kill in self.done]
            elif self.done and words.startswith(f"model restarted: model {self.done[-1].model},"):
                self.done[-1] = replace(self.done[-1], back_s=now_s())

    def lacks(self, instances: Iterable[str]) -> None:
        """Record which instances of another user's server have no process.

        The model that was killed last serves again once none of its instances is among them.

        Args:
            instances: Names of the instances, as
                :func:`slipway_serving.system.process_state.dead_instances` returns them.
        """
        missing = list(instances)
        with self._lock:
            if not self.done or self.done[-1].back_s is not None:
                return
            last = self.done[-1]
            own = re.compile(rf"{re.escape(last.model)}_\d+(_\d+)?")
            if now_s() - last.at_s > _NOTICED_S and not any(own.fullmatch(name) for name in missing):
                self.done[-1] = replace(last, back_s=now_s())

    def after(self, requests: int, server_pid: Callable[[], int | None]) -> None:
        """Kill a model's process if a kill is due.

        Args:
            requests: Number of requests sent so far; each number comes once.
            server_pid: Function that returns the process id of `tritonserver`, or None while it does not run.
        """
        if self._every is None or requests % self._every or (tritonserver := server_pid()) is None:
            return
        with self._lock:
            # Kill one process at a time, after the last model is steady: the server gives up a model that
            # keeps dying.
            if self.done and not _steady(self.done[-1]):
                return
            found = stubs(tritonserver)
            if found:
                pid = int(self._random.choice(sorted(found)))
                self.done.append(Kill(found[pid], now_s()))
                os.kill(pid, signal.SIGKILL)

    @property
    def all_back(self) -> bool:
        """True if every model whose process was killed serves again, and so does a server that died."""
        return all(kill.back_s is not None for kill in (*self.done, *self.deaths))


def _steady(kill: Kill) -> bool:
    return kill.back_s is not None and now_s() - kill.back_s > MODEL_STEADY_S


def unexplained(sent: Sequence[Sent], kills: Sequence[Kill]) -> list[Sent]:
    """Return the failures that no kill explains."""
    return [each for each in sent if each.ended == FAILED and not any(kill.explains(each) for kill in kills)]
