"""Files of a server that no other user can read, and how long the log of a failed server stays."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.hidden_arguments import start
from slipway_serving.system.inherited_sockets import restrict_shared_memory
from slipway_serving.system.private_files import make_empty, make_folder
from slipway_serving.triton import log_files
from slipway_serving.triton.server_log import append_event, limit_size

DAY_S = 24 * 3600


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def everybody_may_read() -> Iterator[None]:
    """A umask that keeps nothing from anybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_file_is_made_for_its_user_alone_and_emptied_when_it_exists(tmp_path: Path) -> None:
    for path in (tmp_path / "new", tmp_path / "old"):
        if path.name == "old":
            path.write_text("of an earlier run")
        make_empty(path)
        assert (path.read_text(), mode(path)) == ("", 0o600)


def test_device_keeps_its_permissions_when_it_is_the_log() -> None:
    before = mode(Path("/dev/null"))
    make_empty(Path("/dev/null"))
    assert mode(Path("/dev/null")) == before


def test_rotated_log_and_one_that_is_made_anew_are_for_their_user_alone(tmp_path: Path) -> None:
    log, earlier = tmp_path / "log", tmp_path / "log.1"
    earlier.write_text("readable by all")
    append_event(log, "model_died")
    limit_size(log, limit_bytes=0)
    assert "model_died" in earlier.read_text()
    assert (mode(log), mode(earlier)) == (0o600, 0o600)


def test_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "made")
    make_folder(tmp_path / "made")  # a second process finds it
    assert mode(tmp_path / "made") == 0o700


def test_folder_is_refused_when_others_may_enter_it(tmp_path: Path) -> None:
    """Its name can be foretold where Slipway has not started Triton: somebody else may have made it."""
    (tmp_path / "open").mkdir(0o777)
    (tmp_path / "private").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "private")
    for name in ("open", "link"):
        with pytest.raises(NotReady, match=f"folder {tmp_path / name} must belong to this user and"):
            make_folder(tmp_path / name)


def test_program_writes_files_for_its_user_alone(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process, _ = start(["/usr/bin/touch", "made"], ["--no-create=x"], env={}, cwd=tmp_path, log=log)
        process.wait(timeout=60)
        plain, _ = start(["/usr/bin/touch", "made"], [], env={}, cwd=tmp_path, log=log)
        assert plain.wait(timeout=60) == 0
    assert mode(tmp_path / "made") == 0o600


def test_shared_memory_of_a_process_is_for_its_user_alone_once_it_is_restricted() -> None:
    memory = SharedMemory(create=True, size=4096)
    try:
        place = Path("/dev/shm") / memory.name
        place.chmod(0o644)  # as Triton's library has it, whatever the umask
        restrict_shared_memory()
        assert mode(place) == 0o600
    finally:
        memory.close()
        memory.unlink()


def test_only_old_logs_of_servers_that_ended_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(timeout=60)
    old, recent = time.time() - 8 * DAY_S, time.time() - 6 * DAY_S
    for server_id, when in {
        f"slipway-{ended.pid}-00000001-": old,
        f"slipway-{ended.pid}-00000002-": recent,
        f"slipway-{os.getpid()}-00000003-": old,
        "slipway-somebody-else-": old,
    }.items():
        log = log_files.default_path(server_id)
        make_folder(log.parent)
        make_empty(log)
        for path in (log, log.parent):
            os.utime(path, (when, when))
    log_files.remove_old_logs()
    assert {path.name.partition("-0000")[2] for path in tmp_path.iterdir()} == {"0002-log", "0003-log", ""}
