"""Kills a process of a served model now and then, and knows until when requests may fail of it.

The server says in words what dies and what is started anew (:class:`slipway_serving.server.Server`, `warn`).
A failure is explained by a kill where the request was under way between it and the model's return, and where
its code is one of :data:`EXPLAINED`. Triton 2.51 now and then dies itself, when a call is cut in the instant
of its last answer, or a process is killed that is just answering (docs/operations.md): that explains as a
kill does, and is counted apart.
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
from slipway_serving.errors import NotReady, SessionLost
from slipway_serving.supervision import MODEL_STEADY_S
from slipway_serving.triton_process import stubs

EXPLAINED = (NotReady.code, SessionLost.code)
"""What a request may fail with whose process was killed: no answer, or a session that went with it."""
TRITON = "tritonserver"
"""Stands for the model where the whole server died."""
# A death is told once it is noticed.
_NOTICED_S = 2.0
# The supervisor's word of the return comes when the model serves; who was refused just before hears it later.
_SLACK_S = 1.0


@dataclass(frozen=True)
class Kill:
    """A process that was killed, or `tritonserver` that died.

    Attributes:
        model: whose it was; :data:`TRITON` for all.
        at_s: when, seconds since the epoch.
        back_s: when the model had been started anew; None as long as it was not.
    """

    model: str
    at_s: float
    back_s: float | None = None

    def explains(self, sent: Sent) -> bool:
        """Tell whether a request may have failed of it."""
        until_s = float("inf") if self.back_s is None else self.back_s + _SLACK_S
        in_time = sent.begun_s <= until_s and sent.ended_s >= self.at_s
        return sent.ended == FAILED and sent.code in EXPLAINED and in_time


class Kills:
    """The kills of one run; may be used from several threads.

    Args:
        every: requests between two kills; None kills nothing.
        random: of the choice.

    Attributes:
        done: so far.
        deaths: of `tritonserver`.
        words: what the server said of deaths and starts.
    """

    def __init__(self, every: int | None, random: np.random.Generator) -> None:
        self._every, self._random, self._lock = every, random, threading.Lock()
        self.done: list[Kill] = []
        self.deaths: list[Kill] = []
        self.words: list[str] = []

    def told(self, words: str) -> None:
        """Take a line of the server's about a death, or about what came of it."""
        with self._lock:
            self.words.append(words)
            if words.startswith("server died:"):
                self.deaths.append(Kill(TRITON, now_s() - _NOTICED_S))
            elif self.deaths and words.startswith("server restarted:"):
                self.deaths[-1] = replace(self.deaths[-1], back_s=now_s())
                # With the server, what it had not started anew yet.
                self.done = [kill if kill.back_s else replace(kill, back_s=now_s()) for kill in self.done]
            elif self.done and words.startswith(f"model restarted: model {self.done[-1].model},"):
                self.done[-1] = replace(self.done[-1], back_s=now_s())

    def lacks(self, instances: Iterable[str]) -> None:
        """Note which instances of another's server have no process.

        The model that was killed last serves again once none of its instances is among them.

        Args:
            instances: Names of the instances, as :func:`slipway_serving.footprints.lost` returns them.
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
        """Kill a model's process if it is time to.

        Args:
            requests: Number of requests sent so far; each number comes once.
            server_pid: Function that returns the process id of `tritonserver`, or None while it does not run.
        """
        if self._every is None or requests % self._every or (tritonserver := server_pid()) is None:
            return
        with self._lock:
            # One at a time, and no row of deaths of one model: after some of these it would be given up.
            if self.done and not _steady(self.done[-1]):
                return
            found = stubs(tritonserver)
            if found:
                pid = int(self._random.choice(sorted(found)))
                self.done.append(Kill(found[pid], now_s()))
                os.kill(pid, signal.SIGKILL)

    @property
    def all_back(self) -> bool:
        """Whether every model whose process was killed serves again, and the server that died."""
        return all(kill.back_s is not None for kill in (*self.done, *self.deaths))


def _steady(kill: Kill) -> bool:
    return kill.back_s is not None and now_s() - kill.back_s > MODEL_STEADY_S


def unexplained(sent: Sequence[Sent], kills: Sequence[Kill]) -> list[Sent]:
    """Return the failures that no kill explains."""
    return [each for each in sent if each.ended == FAILED and not any(kill.explains(each) for kill in kills)]
