"""Shutdown of a running `tritonserver`: in-flight work finishes, then all processes end at once.

First the pipelines finish their work, or stop it at a step boundary (:func:`drain_pipelines`), since Triton
refuses their calls to other models as soon as it shuts down. Then :func:`shut_down` tells Triton to shut
down. On its own, Triton 2.51 would end a model's processes one after another, more than a second each, and
would wait its whole exit timeout for requests that it still counts although their process died or their
caller left. So the state files of processes (:mod:`slipway_serving.system.process_state`) show whether any of
them works; if none does, the rest can be killed. Models of C++ backends have no process and no state files,
so Triton's own log says which of them still work. A server that traces writes its last traces at its very
end, so it is left to end by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from pathlib import Path
from urllib.parse import quote

import psutil

from slipway_serving.system.process_state import running_work
from slipway_serving.system.server_processes import MODELS, ServerResources, stubs
from slipway_serving.triton import server_log
from slipway_serving.triton.drain import drain_by_count
from slipway_serving.triton.install.setup import runs_inside

EXIT_GRACE_S = 5.0
"""Seconds that Triton may take beyond its exit timeout, since it checks the timeout only once a second."""
# The server counts as idle after this long without work in any process. It must be longer than the pause
# between two steps of a request and than a wait in Triton's batcher, which sleeps for up to 500 ms.
_IDLE_S = 1.0
# The same for a server that stops its videos, whose callers wait to continue elsewhere. No pipeline takes
# another step there, so only the wait in the batcher counts.
_STOPPED_IDLE_S = 0.6
# A server that traces requests counts as stuck if no process has worked or ended for this long.
_STUCK_S = 3.0
_POLL_S = 0.05
# Longest wait for the server's answer about a model; a server that hangs is asked once.
_ANSWER_S = 2.0


def drain_pipelines(resources: ServerResources) -> None:
    """Make pipelines refuse new requests, and wait at most the exit timeout for their in-flight requests.

    A server that checkpoints on stop also makes them stop their videos at the next step boundary.
    """

    def running() -> int:
        """Count the in-flight requests of pipelines, except those whose process died."""
        return sum(work.requests for work in running_work(resources.runtime_folder) if work.is_pipeline)

    drain_by_count(
        running,
        resources.exit_timeout_s,
        resources.runtime_folder,
        checkpoint=resources.checkpoint_on_stop,
    )


def shut_down(resources: ServerResources) -> None:
    """Tell the server to shut down; return when it has ended or its remaining processes are idle.

    A process without state files belongs to a model that is not ours and does not report its work. It keeps
    this function waiting until Triton ends it or the exit timeout passes. A server that traces ends by
    itself, unless its processes stay although none of them works.
    """
    inside, log = models_inside(resources), Path(resources.log)
    log_size = log.stat().st_size if log.exists() else 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(resources.pid, signal.SIGTERM)
    last_work_s = time.monotonic()
    deadline = last_work_s + resources.exit_timeout_s + EXIT_GRACE_S
    before: dict[int, str] = {}
    idle_s = _STOPPED_IDLE_S if resources.checkpoint_on_stop else _IDLE_S
    while _is_running(resources.pid) and time.monotonic() < deadline:
        left = stubs(resources.pid)
        idle = {work.pid for work in running_work(resources.runtime_folder) if not work.requests}
        ending = resources.traces and (not left or left != before)
        if ending or not idle.issuperset(left) or inside - server_log.unloaded_models(log, log_size):
            before, last_work_s = left, time.monotonic()
        elif time.monotonic() - last_work_s > (_STUCK_S if resources.traces else idle_s):
            return
        time.sleep(_POLL_S)


def models_inside(resources: ServerResources) -> set[str]:
    """Return the ready models that run in C++ backends, inside the server; none if it does not answer."""
    if not resources.library_backends:
        return set()
    folder, found = Path(resources.folder) / MODELS, set()
    # Slipway cannot list a repository that Triton reads from a URL, but the log names the loaded models.
    names = (
        [path.name for path in folder.iterdir()]
        if folder.is_dir()
        else server_log.loaded_models(server_log.read_text(Path(resources.log)))
    )
    connection = http.client.HTTPConnection(resources.http_url, timeout=_ANSWER_S)
    try:
        for name in names:
            connection.request("GET", f"/v2/models/{quote(name, safe='')}/config")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != http.client.OK:
                continue
            config = json.loads(body)
            backend, runtime = str(config.get("backend", "")), str(config.get("runtime", ""))
            # An ensemble only waits for its steps, each of which counts by itself.
            if backend and runs_inside(backend, runtime, resources.library_backends):
                found.add(name)
    except (OSError, http.client.HTTPException, ValueError):
        return found
    finally:
        connection.close()
    return found


def _is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
