"""What a process leaves outside of itself: known while it lives, missed and taken over when it has died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway_serving.protocol.errors import NotReady
from slipway_serving.system.process_state import (
    NO_PROCESS_STATE,
    ProcessStage,
    ProcessState,
    RunningWork,
    check_processes,
    count_restart,
    dead_instances,
    end_process,
    reloading,
    running_work,
    take_over,
)

# Holds two sessions, ends one, works on three requests, and dies in them.
DIES = """
import os
from pathlib import Path
from slipway_serving.system.process_state import ProcessState

process_state = ProcessState(Path({folder!r}), "net", "net_0")
process_state.record_serving()
for session in ("a", 7):
    process_state.record_session(session)
process_state.remove_session(7)
with process_state.count_requests(3):
    os.kill(os.getpid(), 9)
"""
LIVES = """
from pathlib import Path
from slipway_serving.system.process_state import ProcessState

process_state = ProcessState(Path({folder!r}), "net", "net_0")
process_state.record_serving()
print("there", flush=True)
input()
process_state.record_ending()
"""


def die(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES.format(folder=str(folder))], check=False)


def live(folder: Path) -> subprocess.Popen[str]:
    """Return a process of the model, which ends in good order when it is told to."""
    command = [sys.executable, "-c", LIVES.format(folder=str(folder))]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "there\n"
    return started


def test_work_is_known_while_the_process_lives(tmp_path: Path) -> None:
    process_state = ProcessState(tmp_path, "net", "net_0")
    assert running_work(tmp_path) == [
        RunningWork(os.getpid(), is_pipeline=False, requests=0, stage=ProcessStage.STARTING)
    ]
    process_state.record_serving(is_pipeline=True)
    with process_state.count_requests(2):
        assert running_work(tmp_path) == [
            RunningWork(os.getpid(), is_pipeline=True, requests=2, stage=ProcessStage.SERVING)
        ]
    process_state.record_ending()
    assert running_work(tmp_path) == [
        RunningWork(os.getpid(), is_pipeline=True, requests=0, stage=ProcessStage.ENDING)
    ]


def test_work_of_a_dead_process_is_not_under_way_and_left_to_one_heir(tmp_path: Path) -> None:
    die(tmp_path)
    assert running_work(tmp_path) == []
    heirs = [ProcessState(tmp_path, name, f"{name}_1") for name in ("other", "net")]
    assert [heir.record_serving() for heir in heirs] == [0, 3]
    assert take_over(tmp_path, "net") == 0


def test_process_is_lost_when_it_was_killed_until_another_takes_over(tmp_path: Path) -> None:
    killed = live(tmp_path)
    assert dead_instances(tmp_path) == []
    killed.kill()
    # Nobody asks how it ended, as Triton does not: it stays as a zombie.
    assert os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT) is not None
    assert dead_instances(tmp_path) == ["net_0"]
    killed.communicate()
    assert dead_instances(tmp_path) == ["net_0"]
    successor = ProcessState(tmp_path, "net", "net_0")
    assert dead_instances(tmp_path) == ["net_0"]
    successor.record_serving()
    assert dead_instances(tmp_path) == []


def test_process_is_not_lost_when_it_was_told_to_end(tmp_path: Path) -> None:
    told, idle = live(tmp_path), live(tmp_path)
    told.communicate("\n")
    end_process(tmp_path, idle.pid)
    assert idle.wait() == -9
    assert dead_instances(tmp_path) == []


def test_model_is_reported_while_it_is_reloaded(tmp_path: Path) -> None:
    with reloading(tmp_path, "foreign"), pytest.raises(NotReady, match="the process of foreign has died"):
        check_processes(os.getpid(), tmp_path)
    check_processes(os.getpid(), tmp_path)
    (tmp_path / "full").touch()
    with reloading(tmp_path / "full", "foreign"):  # no mark can be written there
        check_processes(os.getpid(), tmp_path / "full")


def test_sessions_of_a_dead_process_are_lost_and_others_unknown(tmp_path: Path) -> None:
    die(tmp_path)
    heir = ProcessState(tmp_path, "net", "net_1")
    heir.record_serving()
    known = {session: heir.has_lost_session(session) for session in ("a", 7, "7", "../a")}
    assert known == {"a": True, 7: False, "7": False, "../a": False}
    die(tmp_path)
    assert heir.has_lost_session("a")
    heir.record_session("a")
    heir.remove_session("a")
    take_over(tmp_path, "net")
    heir.forget_session("a")
    assert not heir.has_lost_session("a")


def test_restarts_are_counted_by_model_and_for_the_server(tmp_path: Path) -> None:
    assert [count_restart(tmp_path, "net"), count_restart(tmp_path, "net"), count_restart(tmp_path)] == [
        1,
        2,
        1,
    ]
    assert ProcessState(tmp_path, "net", "net_0").restart_counts() == (2, 1)
    assert ProcessState(tmp_path, "other", "other_0").restart_counts() == (0, 1)


def test_nothing_is_kept_where_nobody_looks() -> None:
    with NO_PROCESS_STATE.count_requests(1):
        NO_PROCESS_STATE.record_session("a")
    assert (
        NO_PROCESS_STATE.record_serving(),
        NO_PROCESS_STATE.has_lost_session("a"),
        NO_PROCESS_STATE.restart_counts(),
    ) == (0, False, (0, 0))
