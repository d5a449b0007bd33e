"""Wait for a `tritonserver` that has been started, until it is ready or cannot become ready."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from slipway_serving.protocol.errors import NotReady
from slipway_serving.triton.start import errors
from slipway_serving.triton.start.launch_check import LaunchCheck
from slipway_serving.triton.start.load_progress import LoadProgress

_POLL_S = 0.05


@dataclass(frozen=True)
class StartingServer:
    """A `tritonserver` that loads its models.

    Attributes:
        http_url: "HOST:PORT" of its HTTP endpoint.
        process: Process of the server.
        needs_all: True if one model that fails to load fails the start.
        limit_s: Longest time for all models together to load, in seconds.
        log_path: Path of the server's log.
        read_log: Function that returns the log since the launch.
        is_closing: Function that returns True once the server is to stop.
    """

    http_url: str
    process: subprocess.Popen[bytes]
    needs_all: bool
    limit_s: float
    log_path: Path
    read_log: Callable[[], str]
    is_closing: Callable[[], bool]

    def wait(self, progress: LoadProgress | None) -> None:
        """Poll until the server is ready.

        Args:
            progress: Progress to update with the log; None reports nothing.

        Raises:
            NotReady: The server cannot become ready: a model failed, a process ended, or the time ran out.
        """
        # The endpoints open when all models have loaded or failed. If not all are needed, one failed model
        # keeps `ready` false forever, so we wait for `live` instead.
        endpoint = "ready" if self.needs_all else "live"
        deadline = time.monotonic() + self.limit_s
        launch_check = LaunchCheck(self.process.pid)
        # All polls share one client, since creating one takes longer than the pause between two polls. Proxy
        # settings of the environment do not apply to a server on this machine.
        with httpx.Client(base_url=f"http://{self.http_url}", timeout=2, trust_env=False) as client:
            while not _answers(client, f"/v2/health/{endpoint}"):
                log = self.read_log()
                if self.is_closing():
                    raise NotReady("server: stopped before it was ready; start a new server")
                if progress is not None:
                    progress.update(log)
                code = self.process.poll()
                if code is not None or (self.needs_all and errors.is_code_missing(log)):
                    raise errors.server_error(code, log, self.log_path)
                if ending := launch_check.find_dead_process():
                    raise errors.launch_error(ending, log, self.log_path)
                if time.monotonic() > deadline:
                    raise errors.timeout_error(self.limit_s, log, self.log_path)
                time.sleep(_POLL_S)
        if progress is not None:
            progress.update(self.read_log())


def _answers(client: httpx.Client, path: str) -> bool:
    """Return True if a path of the client's server answers with status 200."""
    try:
        return client.get(path).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
