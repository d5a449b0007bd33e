"""A private PostgreSQL for tests: the installed programs, a temporary folder, one fresh database per test."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

_USER = "postgres"
_DEADLINE_S = 60.0


def programs() -> Path | None:
    """The folder of the newest installed server programs."""
    folders = [
        path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb") if os.access(path, os.X_OK)
    ]
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


MISSING = "PostgreSQL is not installed: there is no /usr/lib/postgresql/*/bin/initdb (apt install postgresql)"


class PostgresServer:
    """A running server, which only this machine reaches.

    Args:
        folder: Folder of the cluster and its socket.
        port: Port on the loopback address.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def url(self, database: str = "postgres") -> str:
        """The address of a database, as `--database` takes it."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database and return its address."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Delete a database, whoever is connected to it."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def cut_connections(self, url: str) -> int:
        """End all connections to a database, and return their number."""
        name = url.rpartition("/")[2]
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            row = connection.execute(query, (name,)).fetchone()
        return int(row[0]) if row is not None else 0


def _as_its_user(command: list[str]) -> list[str]:
    """Return the command as an ordinary user runs it: the server refuses to run as root."""
    if os.geteuid() != 0:
        return command
    return ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups", *command]


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server in a temporary folder, and stop it at the end."""
    folder_of_programs = programs()
    if folder_of_programs is None:
        raise FileNotFoundError(MISSING)
    # Not in pytest's folder, which only the user of the tests may enter.
    folder = Path(tempfile.mkdtemp(prefix="slipway-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _USER, _USER)
        data = folder / "data"
        initdb = [str(folder_of_programs / "initdb"), "-D", str(data), "-U", _USER, "-A", "trust", "-N"]
        subprocess.run(
            _as_its_user([*initdb, "-E", "UTF8", "--locale=C.UTF-8"]),
            check=True,
            capture_output=True,
            cwd=folder,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = [
            f"port={port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={folder}",
            "fsync=off",
            "full_page_writes=off",
            "max_connections=300",
            "shared_buffers=32MB",
        ]
        command = [str(folder_of_programs / "postgres"), "-D", str(data)]
        for option in options:
            command += ["-c", option]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(_as_its_user(command), stdout=log, stderr=log, cwd=folder)
        try:
            server = PostgresServer(folder, port)
            _wait_until_ready(server, process)
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DEADLINE_S)
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(server: PostgresServer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            psycopg.connect(server.url(), connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (server.folder / "log").read_text(errors="replace")
                raise RuntimeError(f"PostgreSQL did not start ({error}): {log[-2000:]}") from None
            time.sleep(0.05)
        else:
            return
