"""A gateway as a user starts it: the command in a process of its own, and calls of it over HTTP."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np

FINAL = ("completed", "failed", "cancelled")
_LIMIT_S = 300.0


class Gateway:
    """A running `slipway gateway`.

    Args:
        arguments: Arguments after `slipway gateway`, without a port.
        log: File of its output.
        key: Key of the caller; None sends none.

    Attributes:
        url: Address of the API.
        http: Client of the API.
    """

    def __init__(self, arguments: Sequence[str], log: Path, key: str | None = None) -> None:
        self._log, self._arguments = log, list(arguments)
        self.url, self._key = "", key
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client()

    def start(self, *more: str, wait: bool = True) -> Gateway:
        """Start the process, on its former port if it had one."""
        port = self.url.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "slipway_cli", "gateway", *self._arguments, "--port", port, *more]
        begin = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        if not wait:
            return self
        deadline = time.monotonic() + _LIMIT_S
        while "ready on " not in (text := self.text(begin)):
            assert self.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        self.url = text.partition("ready on ")[2].split()[0]
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=120, trust_env=False)
        return self

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the process, wait for its end, and return its exit code."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        return self.process.wait(_LIMIT_S)

    def text(self, begin: int = 0) -> str:
        """Return the process's output from a byte on."""
        return self._log.read_bytes()[begin:].decode(errors="replace")

    def create(self, **fields: Any) -> dict[str, Any]:
        """Create a job and return the answer."""
        answer = self.http.post("/v1/videos", json={"prompt": "a red ball", "steps": 4, **fields})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        answer = self.http.get(f"/v1/videos/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def until(self, job_id: str, *statuses: str, limit_s: float = _LIMIT_S) -> dict[str, Any]:
        """Poll a job until it has one of some statuses, or a final one if none is given."""
        deadline = time.monotonic() + limit_s
        while (job := self.job(job_id))["status"] not in (statuses or FINAL):
            assert job["status"] not in FINAL, job
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job

    def content(self, job_id: str, variant: str = "video") -> bytes:
        """Download a content of a job."""
        answer = self.http.get(f"/v1/videos/{job_id}/content", params={"variant": variant})
        assert answer.status_code == 200, answer.text
        return answer.content

    def error(self, method: str, path: str, **arguments: Any) -> tuple[int, dict[str, Any]]:
        """Send a request that is refused; return the status and the error."""
        answer = self.http.request(method, path, **arguments)
        document = answer.json()
        assert set(document) == {"error"}, document
        assert set(document["error"]) == {"message", "type", "param", "code"}, document
        return answer.status_code, document["error"]


def gateway_keys(folder: Path, *arguments: str) -> str:
    """Run `slipway gateway keys` on the database of :func:`running_gateway`, and return what it prints."""
    command = [sys.executable, "-m", "slipway_cli", "gateway", "keys", *arguments]
    command += ["--data", str(folder / "data")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return ran.stdout + ran.stderr


def mp4_frames(mp4: bytes) -> np.ndarray:
    """Return the frames of an MP4 file."""
    with av.open(io.BytesIO(mp4)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


@contextlib.contextmanager
def running_gateway(
    triton: Sequence[str], folder: Path, *arguments: str, key: str | None = None
) -> Iterator[Gateway]:
    """Run a gateway with a database and contents of its own until the block ends."""
    servers = [part for address in triton for part in ("--triton", address)]
    base = [*servers, "--data", str(folder / "data"), "--triton-metrics-port", "0", *arguments]
    gateway = Gateway(base, folder / f"gateway-{os.urandom(3).hex()}.log", key)
    try:
        yield gateway.start()
    finally:
        gateway.http.close()
        if gateway.process is not None and gateway.process.poll() is None:
            gateway.stop()


def events_of(gateway: Gateway, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Follow a job's server-sent events to their end, and return name and content of each."""
    found = []
    with gateway.http.stream("GET", f"/v1/videos/{job_id}/events", timeout=_LIMIT_S) as answer:
        assert answer.status_code == 200
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
    return found
