"""Make videos through a gateway while its process, Triton and models are killed: `make chaos-gateway`.

Callers create jobs, follow them, and delete or pause and resume some of them. A creation without an answer is
sent again with the same Idempotency-Key. Meanwhile a thread kills the gateway's process, which this program
starts again, processes of models, and `tritonserver`, which `slipway serve` starts again. In the end, every
job must be completed with its file, have failed with a reason, or be deleted by its caller; and the gateway
must have no job and no content that nobody asked for. A kill between the upload of a picture and the creation
of its job leaves that picture, which the gateway deletes after an hour; these are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from slipway_loadtests.load.plan import Plan
from slipway_loadtests.load.visits import USES, Use
from slipway_serving.protocol.fields import fields_of
from slipway_serving.system.server_folder import tritonserver_at
from slipway_serving.system.server_processes import stubs
from slipway_serving.triton.supervision import MODEL_STEADY_S

SLIPWAY = str(Path(sys.executable).parent / "slipway")
SIDE_PX, FRAMES, MOST_STEPS = 32, 5, 12
"""Size of a video, and its largest number of steps; the time between two kills has many of them."""
KILLS_S = (2.0, 8.0)
"""Least and largest time between two kills, in seconds."""
TRITON_S = 60.0
"""Least time between two kills of tritonserver, which takes its time to load the models again."""
READY_S, ANSWER_S, JOB_S = 600.0, 60.0, 900.0
"""Longest waits for a process, for an answer, and for the end of a job, in seconds."""
FINAL = ("completed", "failed", "cancelled")
COMPLETED, FAILED, DELETED, LOST = "completed", "failed", "deleted by the caller", "lost"
DELETED_SHARE, PAUSED_SHARE = 0.1, 0.15
PICTURE = "input"
"""Content that is stored before its job."""


def main() -> int:
    """Run the chaos that the command line asks for; return 1 where anything did not hold."""
    asked = _parser().parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    uses = [use for use in USES if use.video and (asked.repository / use.model).is_dir()]
    if not uses:
        raise SystemExit(f"chaos: repository must have a model for videos, got {asked.repository}")
    random = np.random.default_rng(asked.seed)
    with (
        _served(asked.repository, asked.output) as port,
        _Gateway(port, asked.output) as gateway,
        ThreadPoolExecutor(asked.callers) as pool,
    ):
        gateway.wait_for_models([use.model for use in uses])
        seeds = random.integers(2**63, size=asked.jobs)
        callers = [_Caller(gateway, uses, number, int(seed)) for number, seed in enumerate(seeds)]
        with _Trouble(gateway, port, np.random.default_rng(random.integers(2**63))) as trouble:
            endings = list(pool.map(_Caller.make, callers))
        print("  " + ", ".join(f"{count} times {what}" for what, count in sorted(trouble.counts.items())))
        problems = _problems(gateway, endings)
    found = Counter(ending.what for ending in endings)
    print("  " + ", ".join(f"{count} {what}" for what, count in sorted(found.items())))
    for reason, count in Counter(each.said for each in endings if each.what == FAILED).most_common(10):
        print(f"  failed {count} times: {reason}")
    report = {"jobs": asked.jobs, "seed": asked.seed, "endings": found, "kills": trouble.counts}
    (asked.output / "chaos_gateway.json").write_text(json.dumps(report, indent=1) + "\n")
    for problem in problems:
        print(f"chaos: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repository", type=Path, required=True, help="model repository of tiny checkpoints")
    parser.add_argument("--jobs", type=int, default=2000, help="number of jobs")
    parser.add_argument("--callers", type=int, default=24, help="number of jobs at a time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the jobs and the kills")
    parser.add_argument("--output", type=Path, default=Path("out/chaos_gateway"), help="folder of the report")
    return parser


@dataclass(frozen=True)
class _Ending:
    """End of a job.

    Attributes:
        video_id: Id of the job.
        what: What became of it.
        said: Reason of a failure, or what is the matter.
    """

    video_id: str
    what: str
    said: str = ""


class _Gateway:
    """A gateway whose process is started again whenever it is killed; within its `with` block it runs.

    Args:
        triton_port: gRPC port of the server.
        folder: Folder of its data and its log.
    """

    def __init__(self, triton_port: int, folder: Path) -> None:
        self.data = folder / "data"
        self._port, self._log = _free_port(), folder / "gateway.log"
        self._command = [
            SLIPWAY,
            "gateway",
            "--triton",
            f"localhost:{triton_port}",
            "--port",
            str(self._port),
        ]
        self._command += ["--triton-metrics-port", "0", "--data", str(self.data), "--lease-s", "5"]
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}",
            timeout=ANSWER_S,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        )

    def __enter__(self) -> _Gateway:
        if self.data.exists():
            raise SystemExit(f"chaos: {self.data} must not exist; remove it, or choose another --output")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGTERM)
        self.http.close()

    def start(self) -> None:
        """Start the process."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def stop(self, number: int) -> None:
        """Send a signal to the process and wait for its end."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(READY_S)

    def call(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Send a request until a gateway answers it; one that is not ready or full is asked again."""
        ends_s = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.request(method, path, **arguments)
                if answer.status_code not in (429, 503) or time.monotonic() > ends_s:
                    return answer
            if time.monotonic() > ends_s:
                raise RuntimeError(f"chaos: the gateway must answer {method} {path} within {READY_S:g} s")
            time.sleep(0.2)

    def wait_for_models(self, models: Sequence[str]) -> None:
        """Wait until the gateway knows models."""
        ends_s = time.monotonic() + READY_S
        while not set(models) <= {each["id"] for each in self.call("GET", "/v1/models").json()["data"]}:
            if time.monotonic() > ends_s:
                raise RuntimeError(f"chaos: the gateway must know {', '.join(models)}, got fewer models")
            time.sleep(0.2)


class _Caller:
    """Caller of one job.

    Args:
        gateway: Gateway that makes the video.
        uses: Uses of the models that make videos.
        number: Number of the job.
        seed: Seed of the job and of what its caller does with it.
    """

    def __init__(self, gateway: _Gateway, uses: Sequence[Use], number: int, seed: int) -> None:
        self._gateway, self._number = gateway, number
        self._random = np.random.default_rng(seed)
        self._use = uses[int(self._random.integers(len(uses)))]
        fate = self._random.uniform()
        self._deletes = fate < DELETED_SHARE
        self._pauses = DELETED_SHARE <= fate < DELETED_SHARE + PAUSED_SHARE

    def make(self) -> _Ending:
        """Create the job, follow it to its end, and return what became of it."""
        created = self._create()
        if created.status_code != 200:
            return _Ending(f"number {self._number}", LOST, f"it was not created: {created.text[:300]}")
        video_id = str(created.json()["id"])
        path = f"/v1/videos/{video_id}"
        ends_s = time.monotonic() + JOB_S
        acts_s = time.monotonic() + self._random.uniform(0.0, 3.0)
        while time.monotonic() < ends_s:
            answer = self._gateway.call("GET", path)
            if answer.status_code != 200:
                return _Ending(video_id, LOST, f"GET said {answer.status_code}: {answer.text[:300]}")
            job = answer.json()
            if job["status"] in FINAL:
                return self._ending(job)
            if time.monotonic() >= acts_s and self._deletes:
                return self._delete(path, video_id)
            if job["status"] == "paused":
                # An answer may be lost and the request come again, so a conflict is fine.
                self._gateway.call("POST", f"{path}/resume", json={})
            elif time.monotonic() >= acts_s and self._pauses:
                self._pauses = False
                self._gateway.call("POST", f"{path}/pause")
            time.sleep(0.25)
        return _Ending(video_id, LOST, f"it did not end within {JOB_S:g} s: {json.dumps(job)[:300]}")

    def _create(self) -> httpx.Response:
        assert self._use.video is not None
        request, fields = self._use.video(Plan(), self._random)
        small = {"width": SIDE_PX, "height": SIDE_PX, "frames": FRAMES, "seconds": 1}
        names = {field.name for field in fields_of(request)}
        fields |= {name: value for name, value in small.items() if name in names}
        fields |= {"model": self._use.model, "steps": int(self._random.integers(2, MOST_STEPS + 1))}
        files = {name: fields.pop(name) for name in list(fields) if isinstance(fields[name], bytes)}
        headers = {"Idempotency-Key": f"chaos-{self._number}"}
        body: dict[str, Any] = {"data": fields, "files": files} if files else {"json": fields}
        return self._gateway.call("POST", "/v1/videos", headers=headers, **body)

    def _delete(self, path: str, video_id: str) -> _Ending:
        answer = self._gateway.call("DELETE", path)
        # A deletion whose answer was lost has happened: the job does not exist any more.
        if answer.status_code not in (200, 404):
            return _Ending(video_id, LOST, f"DELETE said {answer.status_code}: {answer.text[:300]}")
        return _Ending(video_id, DELETED)

    def _ending(self, job: dict[str, Any]) -> _Ending:
        if job["status"] == "failed":
            error = job["error"] or {}
            reason = f"{error.get('code')}: {str(error.get('message')).replace(job['id'], 'ID')[:160]}"
            return _Ending(job["id"], FAILED if error.get("message") else LOST, reason)
        if job["status"] == "cancelled":
            return _Ending(job["id"], LOST, "nobody cancelled it")
        return _Ending(job["id"], COMPLETED)


def _problems(gateway: _Gateway, endings: Sequence[_Ending]) -> list[str]:
    """Return what does not hold when every caller has gone."""
    problems = [f"{each.video_id} is lost: {each.said}" for each in endings if each.what == LOST]
    by_id = {each.video_id: each for each in endings}
    if len(by_id) < len(endings):
        problems.append("every caller must have a job of its own, got one job for several")
    listed = _listed(gateway)
    if strangers := sorted(listed.keys() - by_id.keys()):
        problems.append(f"no job may exist that nobody asked for, got {strangers[:5]}")
    for each in endings:
        status = listed.get(each.video_id)
        if each.what == DELETED and status is not None:
            problems.append(f"{each.video_id} must be deleted, got {status}")
        elif each.what in (COMPLETED, FAILED) and status != each.what:
            problems.append(f"{each.video_id} must stay {each.what}, got {status}")
        if each.what == COMPLETED:
            file = gateway.call("GET", f"/v1/videos/{each.video_id}/content").content
            if file[4:8] != b"ftyp":
                problems.append(f"{each.video_id} must have an MP4 file, got {file[:80]!r}")
    return problems + _orphans(gateway, set(listed))


def _listed(gateway: _Gateway) -> dict[str, str]:
    """Return the status of each job."""
    found: dict[str, str] = {}
    page: dict[str, Any] = {"has_more": True, "last_id": None}
    while page["has_more"]:
        asked = {"limit": 100, "order": "asc"} | ({"after": page["last_id"]} if page["last_id"] else {})
        page = gateway.call("GET", "/v1/videos", params=asked).json()
        found |= {job["id"]: job["status"] for job in page["data"]}
    return found


def _orphans(gateway: _Gateway, known: set[str]) -> list[str]:
    """Return a sentence if contents without a job stay; those of deleted jobs have a minute to go."""
    contents, ends_s = gateway.data / "contents", time.monotonic() + 90.0
    while True:
        left = {
            folder.name: sorted(file.name for file in folder.iterdir())
            for folder in contents.glob("video_*")
            if folder.name not in known
        }
        pictures = [name for name, files in left.items() if all(_is_picture(file) for file in files)]
        if len(pictures) == len(left):
            print(f"  {len(left)} pictures of creations that a kill has cut")
            return []
        if time.monotonic() > ends_s:
            return [f"no content may be left without a job, got {left}"]
        time.sleep(1.0)


def _is_picture(file: str) -> bool:
    """Return whether a file is a picture, or a part of one whose writing was cut."""
    return file == PICTURE or file.startswith(f".{PICTURE}.")


class _Trouble:
    """Thread that kills processes, within its `with` block.

    Args:
        gateway: Gateway whose process is killed and started again.
        port: gRPC port of the server.
        random: Random generator that chooses.

    Attributes:
        counts: How often each thing was done.
    """

    def __init__(self, gateway: _Gateway, port: int, random: np.random.Generator) -> None:
        self._gateway, self._port, self._random = gateway, port, random
        self.counts: Counter[str] = Counter()
        self._done = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        # `slipway serve` gives up a model that keeps dying, so each one gets the time to be steady.
        self._model_s = self._triton_s = time.monotonic()

    def __enter__(self) -> _Trouble:
        self._caused = self._pool.submit(self._cause)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._caused.result()  # a run without trouble must not pass

    def _cause(self) -> None:
        while not self._done.wait(self._random.uniform(*KILLS_S)):
            kind = self._random.uniform()
            if kind < 0.4:
                self._restart(signal.SIGKILL, "the gateway was killed")
            elif kind < 0.55:
                self._restart(signal.SIGTERM, "the gateway was stopped")
            elif kind < 0.9:
                self._kill_model()
            else:
                self._kill_triton()

    def _restart(self, number: int, what: str) -> None:
        self._gateway.stop(number)
        self.counts[what] += 1
        self._gateway.start()

    def _kill_model(self) -> None:
        triton = tritonserver_at(self._port)
        if triton is None or time.monotonic() - self._model_s < 2 * MODEL_STEADY_S:
            return
        if found := sorted(stubs(triton.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self._random.choice(found)), signal.SIGKILL)
                self.counts["a process of a model was killed"] += 1
                self._model_s = time.monotonic()

    def _kill_triton(self) -> None:
        triton = tritonserver_at(self._port)
        if triton is None or time.monotonic() - self._triton_s < TRITON_S:
            return
        triton.send_signal(signal.SIGKILL)
        self.counts["tritonserver was killed"] += 1
        self._triton_s = self._model_s = time.monotonic()


@contextlib.contextmanager
def _served(repository: Path, folder: Path) -> Iterator[int]:
    """Serve a repository, and end the server afterwards; the gRPC port is given."""
    port = _free_port()
    command = [SLIPWAY, "serve", "--repository", str(repository), "--no-progress", "--http-port", "0"]
    command += ["--grpc-port", str(port), "--metrics-port", "0"]
    with (folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        ready = [SLIPWAY, "ready", "--wait-s", f"{READY_S:g}", "--url", f"localhost:{port}"]
        if subprocess.run(ready, stdout=subprocess.DEVNULL, check=False).returncode:
            raise RuntimeError(f"chaos: the server must become ready; see {folder / 'serve.log'}")
        yield port
    finally:
        server.terminate()
        server.wait(READY_S)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
