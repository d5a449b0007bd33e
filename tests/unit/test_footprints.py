"""What a process leaves outside of itself: known while it lives, taken over when it has died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slipway_serving.footprints import NO_FOOTPRINT, Footprint, Work, count_restart, under_way

# Holds two sessions, ends one, works on three requests, and dies in them.
DIES = """
import os
from pathlib import Path
from slipway_serving.footprints import Footprint

footprint = Footprint(Path({folder!r}), "net")
for session in ("a", 7):
    footprint.session_began(session)
footprint.session_ended(7)
with footprint.working(3):
    os.kill(os.getpid(), 9)
"""


def die(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", DIES.format(folder=str(folder))], check=False)


def test_work_is_known_while_the_process_lives(tmp_path: Path) -> None:
    footprint = Footprint(tmp_path, "net")
    footprint.is_pipeline()
    with footprint.working(2):
        assert under_way(tmp_path) == [Work(os.getpid(), pipeline=True, requests=2)]
    assert under_way(tmp_path) == [Work(os.getpid(), pipeline=True, requests=0)]


def test_work_of_a_dead_process_is_not_under_way_and_left_to_one_heir(tmp_path: Path) -> None:
    die(tmp_path)
    assert under_way(tmp_path) == []
    other, first, second = (Footprint(tmp_path, name) for name in ("other", "net", "net"))
    assert (other.inherit(), first.inherit(), second.inherit()) == (0, 3, 0)


def test_sessions_of_a_dead_process_are_lost_and_others_unknown(tmp_path: Path) -> None:
    die(tmp_path)
    heir = Footprint(tmp_path, "net")
    heir.inherit()
    known = {session: heir.has_lost(session) for session in ("a", 7, "7", "../a")}
    assert known == {"a": True, 7: False, "7": False, "../a": False}
    die(tmp_path)
    assert heir.has_lost("a")
    heir.session_began("a")
    heir.session_ended("a")
    Footprint(tmp_path, "net").inherit()
    heir.forget("a")
    assert not heir.has_lost("a")


def test_restarts_are_counted_by_model_and_for_the_server(tmp_path: Path) -> None:
    assert [count_restart(tmp_path, "net"), count_restart(tmp_path, "net"), count_restart(tmp_path)] == [
        1,
        2,
        1,
    ]
    assert Footprint(tmp_path, "net").restarts() == (2, 1)
    assert Footprint(tmp_path, "other").restarts() == (0, 1)


def test_nothing_is_kept_where_nobody_looks() -> None:
    with NO_FOOTPRINT.working(1):
        NO_FOOTPRINT.session_began("a")
    assert (NO_FOOTPRINT.inherit(), NO_FOOTPRINT.has_lost("a"), NO_FOOTPRINT.restarts()) == (0, False, (0, 0))
