"""Gateways whose processes, servers and connections are killed, and what their database says meanwhile.

A :class:`Site` is one database, one folder of contents, and the processes of the gateway on them. A
:class:`History` follows the rows of the jobs from the outside. A :class:`Disturber` kills one thing after the
other, each time when the history shows a job in the middle of its steps.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from gate import Gate
from gateway_fixtures import FINAL, Gateway
from postgres_server import PostgresServer
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from slipway_gateway.database.address import database_url
from slipway_gateway.database.revisions import upgrade
from slipway_serving.system.server_processes import stubs
from slipway_serving.triton.server import Server

LIMIT_S = 280.0
SIZE = {"frames": 5, "size": "32x32"}
EVERY_STEPS = 2
LEASE_S = 2
_COLUMNS = "id, model, status, step, steps, state_step, attempts, runs_from_state, worker, error_code"


@dataclass(frozen=True)
class Row:
    """Row of a job at one moment."""

    id: str
    model: str
    status: str
    step: int
    steps: int
    state_step: int | None
    attempts: int
    runs_from_state: int
    worker: str | None
    error_code: str | None

    @property
    def is_in_the_middle(self) -> bool:
        """True if the job runs, has a state, and has at least two steps to go."""
        return self.status == "in_progress" and bool(self.state_step) and self.step + 2 <= self.steps

    @property
    def process(self) -> str:
        """Name of the worker that has the job, which is that of the run without its own part."""
        return (self.worker or "").partition("#")[0]


class History(threading.Thread):
    """Reader of the jobs' rows.

    Args:
        url: Address of the database.

    Attributes:
        seen: Rows of each job, one for each change that was seen.
    """

    def __init__(self, url: str) -> None:
        super().__init__(name="history", daemon=True)
        self._engine = create_engine(database_url(url), poolclass=NullPool)
        self.seen: dict[str, list[Row]] = {}
        self._ended = threading.Event()

    def rows(self) -> list[Row]:
        """Return all rows as they are now, in the order of creation."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                with self._engine.connect() as connection:
                    return [
                        Row(**row._mapping)
                        for row in connection.execute(text(f"SELECT {_COLUMNS} FROM jobs ORDER BY id"))
                    ]
            except DBAPIError:
                assert time.monotonic() < deadline, "the database does not answer"

    def run(self) -> None:
        """Read the rows until :meth:`end`."""
        while not self._ended.wait(0.01):
            self.read()

    def read(self) -> list[Row]:
        """Read the rows once, and remember what has changed."""
        rows = self.rows()
        for row in rows:
            known = self.seen.setdefault(row.id, [])
            if not known or known[-1] != row:
                known.append(row)
        return rows

    def end(self) -> None:
        """End the reader after one last read."""
        self._ended.set()
        if self.is_alive():
            self.join(LIMIT_S)
        self.read()

    def check(self, max_attempts: int = 2) -> None:
        """Check that no job went back: not behind a state, and to no first step where it had a state."""
        for job_id, rows in self.seen.items():
            states = [row.state_step for row in rows if row.state_step is not None]
            assert states == sorted(states), (job_id, rows)
            with_state = [row for row in rows if row.state_step is not None]
            assert len({row.attempts for row in with_state}) <= 1, (job_id, rows)
            assert all(row.step >= (row.state_step or 0) for row in rows), (job_id, rows)
            assert all(row.attempts <= max_attempts for row in rows), (job_id, rows)
            if with_state:
                first = rows.index(with_state[0])
                assert all(row.state_step is not None for row in rows[first:]), (job_id, rows)


@dataclass
class Site:
    """One database, one folder of contents, and the gateway's processes on them.

    Attributes:
        folder: Folder of contents and logs.
        database: Address of the database.
        servers: Servers of the workers.
        apis: Processes of the API.
        workers: Worker processes.
        history: Reader of the jobs' rows.
    """

    folder: Path
    database: str
    servers: Sequence[Server]
    apis: list[Gateway] = field(default_factory=list)
    workers: list[Gateway] = field(default_factory=list)

    def __post_init__(self) -> None:
        upgrade(self.database)
        self.history = History(self.database)

    @property
    def contents(self) -> Path:
        """Folder of the contents."""
        return self.folder / "contents"

    def start(self, role: str, *more: str) -> Gateway:
        """Start one process of the gateway."""
        servers = [part for server in self.servers for part in ("--triton", server.grpc_url)]
        arguments = [
            *servers, "--role", role, "--database", self.database, "--contents", str(self.contents),
            "--data", str(self.folder), "--triton-metrics-port", "0", "--lease-s", str(LEASE_S),
            "--checkpoint-every-steps", str(EVERY_STEPS), *more,
        ]  # fmt: skip
        gateway = Gateway(arguments, self.folder / f"{role}-{secrets.token_hex(3)}.log")
        (self.workers if role == "worker" else self.apis).append(gateway)
        return gateway.start()

    def end(self) -> None:
        """Kill what still runs."""
        self.history.end()
        for gateway in (*self.apis, *self.workers):
            gateway.http.close()
            if gateway.process is not None and gateway.process.poll() is None:
                gateway.stop(signal.SIGKILL)

    def logs(self) -> str:
        """Return the end of each process's output."""
        return "\n".join(gateway.text()[-3000:] for gateway in (*self.apis, *self.workers))

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Send a request to any API process, as a patient caller does: again while none answers."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            for api in self.apis:
                try:
                    answer = httpx.request(method, api.url + path, timeout=60, trust_env=False, **arguments)
                except httpx.TransportError:
                    continue
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def create(self, key: str, **fields: Any) -> dict[str, Any]:
        """Create a job; a request whose answer was lost is sent again with the same key."""
        answer = self.request("POST", "/v1/videos", json={**SIZE, **fields}, headers={"idempotency-key": key})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def job(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        answer = self.request("GET", f"/v1/videos/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def until_final(self, job_id: str) -> dict[str, Any]:
        """Poll a job until it has ended."""
        deadline = time.monotonic() + LIMIT_S
        while (job := self.job(job_id))["status"] not in FINAL:
            assert time.monotonic() < deadline, (job, self.logs())
            time.sleep(0.05)
        return job

    def video(self, job_id: str) -> bytes:
        """Download a video."""
        answer = self.request("GET", f"/v1/videos/{job_id}/content")
        assert answer.status_code == 200, answer.text
        return answer.content

    def check_contents(self) -> None:
        """Check that contents and jobs match: each content has its job, each completed job its contents."""
        rows = {row.id: row for row in self.history.rows()}
        found = {
            folder.name: {file.name for file in folder.iterdir()}
            for folder in self.contents.iterdir()
            if folder.is_dir()
        }
        assert found.keys() <= rows.keys(), found.keys() - rows.keys()
        for job_id, row in rows.items():
            names = {name for name in found.get(job_id, set()) if not name.startswith(".")}
            if row.status == "completed":
                assert names - {"state"} == {"video"}, (row, names)
            else:
                assert names <= {"state"}, (row, names)


@contextlib.contextmanager
def site(folder: Path, database: str, servers: Sequence[Server]) -> Iterator[Site]:
    """Have a database with its tables until the block ends; what runs on it is killed then."""
    made = Site(folder, database, servers)
    try:
        yield made
    finally:
        made.end()


class Disturber(threading.Thread):
    """Kill one thing after the other, each in the middle of some job's steps.

    Args:
        place: Processes and servers to kill.
        turns: What to kill, in order: "api", "worker", "server", "pipeline" or "connections".
        postgres: Server of the database, for "connections".

    Attributes:
        kills: Number of kills so far, by what was killed.
        error: Error that ended the thread.
    """

    def __init__(self, place: Site, turns: Sequence[str], postgres: PostgresServer | None = None) -> None:
        super().__init__(name="disturber", daemon=True)
        self._site, self._turns, self._postgres = place, turns, postgres
        self._numbers: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Take all turns."""
        try:
            before: set[tuple[str, int]] = set()
            for turn in self._turns:
                before = self._until_in_the_middle(before)
                self._kill(turn)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def end(self) -> None:
        """Wait for the last turn, and raise the error of one that failed."""
        self.join(LIMIT_S * len(self._turns))
        if self.error is not None:
            raise self.error
        assert not self.is_alive()

    def _until_in_the_middle(self, before: set[tuple[str, int]]) -> set[tuple[str, int]]:
        """Wait until a job is in the middle of its steps and at another step than at the last kill."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            rows = self._site.history.rows()
            middle = {(row.id, row.step) for row in rows if row.is_in_the_middle}
            if middle - before:
                return middle
            assert time.monotonic() < deadline, (dict(self.kills), rows, self._site.logs())
            time.sleep(0.005)

    def _kill(self, turn: str) -> None:
        number = self._numbers[turn]
        self._numbers[turn] += 1
        if turn in ("api", "worker"):
            gateways = self._site.apis if turn == "api" else self._site.workers
            gateway = gateways[number % len(gateways)]
            gateway.stop(signal.SIGKILL)
            # The next kill does not wait for the new process, so that it finds work under way.
            gateway.start(wait=False)
        elif turn == "connections":
            assert self._postgres is not None
            assert self._postgres.cut_connections(self._site.database) > 0
        else:
            self._kill_server(turn, number)
        self.kills[turn] += 1

    def _kill_server(self, turn: str, number: int) -> None:
        """Kill `tritonserver` or a process of the pipeline; the launcher starts it again."""
        server = self._site.servers[number % len(self._site.servers)]
        deadline = time.monotonic() + LIMIT_S
        while True:
            pid = server.pid
            assert pid is not None
            victims = [pid]
            if turn == "pipeline":
                victims = [stub for stub, model in stubs(pid).items() if model == "wan_t2v"]
            if victims and server.is_alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victims[0], signal.SIGKILL)
                    return
            assert time.monotonic() < deadline, server.log_text()[-3000:]
            time.sleep(0.02)


def until(condition: Callable[[], bool], what: str, place: Site) -> None:
    """Poll a condition; fail with the logs of the gateway's processes when the time is over."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {place.history.rows()} {place.logs()}"
        time.sleep(0.02)


def step_until(condition: Callable[[], bool], gates: Sequence[Gate], place: Site) -> None:
    """Let one step after the other pass at each gate until a condition holds.

    Nothing tells when a process has heard of a signal, so the steps come ever more slowly.
    """
    pause_s, deadline = 0.1, time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, (place.history.rows(), place.logs())
        for gate in gates:
            gate.let(1)
        look_again = time.monotonic() + pause_s
        while not condition() and time.monotonic() < look_again:
            time.sleep(0.02)
        pause_s = min(1.5 * pause_s, 8.0)
    for gate in gates:
        gate.let(0)
