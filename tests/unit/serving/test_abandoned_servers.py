"""What a dead server left is ended by the next start; a living one, and another user's, is left alone."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slipway_serving.system.server_processes import ID_VARIABLE, SHARED_MEMORY, ServerResources
from slipway_serving.triton.abandoned_servers import (
    create_runtime_folder,
    remove_leftovers,
    share_runtime_folder,
)

CLAIMS = """
import sys
from slipway_serving.triton.abandoned_servers import create_runtime_folder, share_runtime_folder
from slipway_serving.system.server_processes import ServerResources

resources = ServerResources({server_id!r}, {folder!r}, 0, 1.0, "")
held = {how}(resources)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def resources() -> Iterator[ServerResources]:
    """What a server had: a folder, a region of shared memory, and a process."""
    server_id = f"slipway-{os.getpid()}-{secrets.token_hex(4)}-"
    folder, region = Path(tempfile.mkdtemp(prefix=server_id)), SHARED_MEMORY / f"{server_id}region"
    region.touch()
    code = [sys.executable, "-c", "input()"]
    environment = {**os.environ, ID_VARIABLE: server_id}
    with subprocess.Popen(code, stdin=subprocess.PIPE, env=environment) as process:
        had = ServerResources(server_id, str(folder), process.pid, 1.0, "")
        yield had
        process.kill()
    region.unlink(missing_ok=True)
    for left in (had.folder, had.runtime_folder):
        shutil.rmtree(left, ignore_errors=True)


def hold(resources: ServerResources, how: str) -> subprocess.Popen[str]:
    """Return a process that holds a claim to a server, as its launcher or its watcher does."""
    code = CLAIMS.format(server_id=resources.server_id, folder=resources.folder, how=how)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def lives(resources: ServerResources) -> bool:
    return psutil.Process(resources.pid).status() != psutil.STATUS_ZOMBIE


def test_leftovers_end_when_launcher_and_watcher_were_killed(resources: ServerResources) -> None:
    launcher = hold(resources, "create_runtime_folder")
    watcher = hold(resources, "share_runtime_folder")
    for holder in (launcher, watcher):
        assert resources.server_id not in remove_leftovers()
        assert lives(resources)
        holder.kill()
        holder.communicate()
    assert resources.server_id in remove_leftovers()
    assert not lives(resources)
    assert not list(SHARED_MEMORY.glob(f"{resources.server_id}*"))
    assert not Path(resources.folder).exists()
    assert resources.server_id not in remove_leftovers()


def test_server_of_this_process_is_left_alone(resources: ServerResources) -> None:
    with create_runtime_folder(resources):
        assert resources.server_id not in remove_leftovers()
    assert resources.server_id in remove_leftovers()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_server_of_another_user_is_left_alone(resources: ServerResources) -> None:
    create_runtime_folder(resources).close()
    os.chown(resources.runtime_folder, 65534, 65534)
    assert resources.server_id not in remove_leftovers()
    assert lives(resources)


@pytest.mark.parametrize("text", ["", "[]", '{"server_id": "slipway-1-a-"}'])
def test_folder_that_no_server_made_is_left_alone(resources: ServerResources, text: str) -> None:
    with create_runtime_folder(resources) as file:
        file.truncate(0)
        file.seek(0)
        file.write(text.encode())
    assert resources.server_id not in remove_leftovers()
    assert lives(resources)


def test_only_folders_of_the_server_itself_are_removed(resources: ServerResources, tmp_path: Path) -> None:
    other = ServerResources(resources.server_id, str(tmp_path), 0, 1.0, "")
    create_runtime_folder(other).close()
    assert resources.server_id not in remove_leftovers()
    assert tmp_path.is_dir()


def test_watcher_of_a_server_that_is_gone_claims_nothing(resources: ServerResources) -> None:
    assert share_runtime_folder(resources) is None
