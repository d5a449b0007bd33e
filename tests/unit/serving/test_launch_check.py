"""Processes that ended while their server waits for their first message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest
from server_fixtures import wait_until

from slipway_serving.triton.start.launch_check import GRACE_S, LaunchCheck


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A child of this process, which nobody waits for before the end of the test."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate(timeout=60)


def ends(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    child.send_signal(number)
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "the end of the process")


def test_process_is_told_when_nobody_has_waited_for_it_for_a_while(child: subprocess.Popen[bytes]) -> None:
    now = iter([0.0, 1.0, 1.0 + GRACE_S - 0.1, 1.0 + GRACE_S])
    launches = LaunchCheck(os.getpid(), lambda: next(now))
    assert launches.find_dead_process() == ""
    ends(child, signal.SIGKILL)
    assert [launches.find_dead_process() for _ in range(3)] == ["", "", "killed by SIGKILL"]


def test_process_is_not_told_when_it_was_waited_for(child: subprocess.Popen[bytes]) -> None:
    now = iter([0.0, GRACE_S, 2 * GRACE_S])
    launches = LaunchCheck(os.getpid(), lambda: next(now))
    ends(child, signal.SIGTERM)
    assert launches.find_dead_process() == ""
    child.wait(timeout=60)
    assert [launches.find_dead_process(), launches.find_dead_process()] == ["", ""]


def test_nothing_is_told_of_a_server_that_has_ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait(timeout=60)
    assert LaunchCheck(child.pid).find_dead_process() == ""
