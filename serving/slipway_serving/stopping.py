"""Stops a running `tritonserver`: the work under way ends, then everything does, at once.

First pipelines end what they work on (:func:`finish_pipelines`), since Triton refuses their calls of other
models as soon as it is told to end. Then it is told (:func:`end`). Left to itself, Triton 2.51 would end a
model's processes one after the other, more than a second each, and wait its whole exit timeout for requests
that it still counts though their process died or their caller went. So the processes are asked
(:mod:`slipway_serving.footprints`): when none of them works any more, what is left can be swept. A server
that traces writes the last of its traces at its very end, and is left to it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from slipway_serving.drain import drain_known
from slipway_serving.footprints import under_way
from slipway_serving.triton_process import Belongings, stubs

EXIT_GRACE_S = 5.0
"""After its exit timeout Triton gives up on requests, but looks for that only once a second."""
# For so long no process may have worked. Between two steps of a request, or while Triton has one in a queue,
# none does for a moment: at most for the 500 ms that its batcher sleeps.
_IDLE_S = 1.0
# For so long no process may have ended either, where the end is Triton's.
_STUCK_S = 3.0
_POLL_S = 0.05


def finish_pipelines(belongings: Belongings) -> None:
    """Have pipelines refuse what comes, and wait for what they work on, at most the exit timeout."""

    def running() -> int:
        """Count their requests; none of those whose process died."""
        return sum(work.requests for work in under_way(belongings.requests) if work.pipeline)

    drain_known(running, belongings.exit_timeout_s, belongings.requests)


def end(belongings: Belongings) -> None:
    """Tell the server to end; return when it has, or when what is left of it has nothing to do.

    A process without a footprint, of a model that is not ours, tells nothing of its work: Triton ends it, or
    its exit timeout passes. One that traces ends by itself, unless its processes stay though none works.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(belongings.pid, signal.SIGTERM)
    worked_s = time.monotonic()
    deadline = worked_s + belongings.exit_timeout_s + EXIT_GRACE_S
    before: dict[int, str] = {}
    while _runs(belongings.pid) and time.monotonic() < deadline:
        left = stubs(belongings.pid)
        idle = {work.pid for work in under_way(belongings.requests) if not work.requests}
        ending = belongings.traces and (not left or left != before)
        if ending or not idle.issuperset(left):
            before, worked_s = left, time.monotonic()
        elif time.monotonic() - worked_s > (_STUCK_S if belongings.traces else _IDLE_S):
            return
        time.sleep(_POLL_S)


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
