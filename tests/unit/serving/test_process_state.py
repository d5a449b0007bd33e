"""What a process leaves outside of itself: known while it lives, missed and taken over when it has died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slipway_serving.system.process_state import (
    NO_FOOTPRINT,
    Footprint,
    Stage,
    Work,
    count_restart,
    end,
    inherit,
    lost,
    under_way,
)

# Holds two sessions, ends one, works on three requests, and dies in them.
DIES = """
import os
from pathlib import Path
from slipway_serving.system.process_state import Footprint

footprint = Footprint(Path({folder!r}), "net", "net_0")
footprint.serves()
for session in ("a", 7):
    footprint.session_began(session)
footprint.session_ended(7)
with footprint.working(3):
    os.kill(os.getpid(), 9)
"""
LIVES = """
from pathlib import Path
from slipway_serving.system.process_state import Footprint

footprint = Footprint(Path({folder!r}), "net", "net_0")
footprint.serves()
print("there", flush=True)
input()
footprint.ends()
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
    footprint = Footprint(tmp_path, "net", "net_0")
    assert under_way(tmp_path) == [Work(os.getpid(), pipeline=False, requests=0, stage=Stage.STARTS)]
    footprint.serves(pipeline=True)
    with footprint.working(2):
        assert under_way(tmp_path) == [Work(os.getpid(), pipeline=True, requests=2, stage=Stage.SERVES)]
    footprint.ends()
    assert under_way(tmp_path) == [Work(os.getpid(), pipeline=True, requests=0, stage=Stage.ENDS)]


def test_work_of_a_dead_process_is_not_under_way_and_left_to_one_heir(tmp_path: Path) -> None:
    die(tmp_path)
    assert under_way(tmp_path) == []
    heirs = [Footprint(tmp_path, name, f"{name}_1") for name in ("other", "net")]
    assert [heir.serves() for heir in heirs] == [0, 3]
    assert inherit(tmp_path, "net") == 0


def test_process_is_lost_when_it_was_killed_until_another_takes_over(tmp_path: Path) -> None:
    killed = live(tmp_path)
    assert lost(tmp_path) == []
    killed.kill()
    # Nobody asks how it ended, as Triton does not: it stays as a zombie.
    assert os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT) is not None
    assert lost(tmp_path) == ["net_0"]
    killed.communicate()
    assert lost(tmp_path) == ["net_0"]
    successor = Footprint(tmp_path, "net", "net_0")
    assert lost(tmp_path) == ["net_0"]
    successor.serves()
    assert lost(tmp_path) == []


def test_process_is_not_lost_when_it_was_told_to_end(tmp_path: Path) -> None:
    told, idle = live(tmp_path), live(tmp_path)
    told.communicate("\n")
    end(tmp_path, idle.pid)
    assert idle.wait() == -9
    assert lost(tmp_path) == []


def test_sessions_of_a_dead_process_are_lost_and_others_unknown(tmp_path: Path) -> None:
    die(tmp_path)
    heir = Footprint(tmp_path, "net", "net_1")
    heir.serves()
    known = {session: heir.has_lost(session) for session in ("a", 7, "7", "../a")}
    assert known == {"a": True, 7: False, "7": False, "../a": False}
    die(tmp_path)
    assert heir.has_lost("a")
    heir.session_began("a")
    heir.session_ended("a")
    inherit(tmp_path, "net")
    heir.forget("a")
    assert not heir.has_lost("a")


def test_restarts_are_counted_by_model_and_for_the_server(tmp_path: Path) -> None:
    assert [count_restart(tmp_path, "net"), count_restart(tmp_path, "net"), count_restart(tmp_path)] == [
        1,
        2,
        1,
    ]
    assert Footprint(tmp_path, "net", "net_0").restarts() == (2, 1)
    assert Footprint(tmp_path, "other", "other_0").restarts() == (0, 1)


def test_nothing_is_kept_where_nobody_looks() -> None:
    with NO_FOOTPRINT.working(1):
        NO_FOOTPRINT.session_began("a")
    assert (NO_FOOTPRINT.serves(), NO_FOOTPRINT.has_lost("a"), NO_FOOTPRINT.restarts()) == (0, False, (0, 0))
