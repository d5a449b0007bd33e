"""What is seen of a process from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from server_fixtures import wait_until

from slipway_serving.system.server_processes import crash_signal

# A handler in C, which the kernel keeps the signal from while it runs; Python's own run later.
HANDLES = """
import ctypes
import os
import sys
import time

handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: time.sleep(600))
ctypes.CDLL(None).signal(int(sys.argv[1]), handler)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("number", "seen"),
    [(signal.SIGABRT, signal.SIGABRT), (signal.SIGSEGV, signal.SIGSEGV), (signal.SIGUSR1, None)],
)
def test_process_in_its_handler_of_a_signal_that_ends_it_is_seen(
    number: signal.Signals, seen: signal.Signals | None
) -> None:
    command = [sys.executable, "-c", HANDLES, str(int(number))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            assert crash_signal(child.pid) is None
            os.kill(child.pid, number)
            # The kernel tells what it has given to the process.
            mask = f"SigBlk:\t{1 << number - 1:016x}"
            status = Path(f"/proc/{child.pid}/status")
            wait_until(lambda: mask in status.read_text(), "the handler")
            assert crash_signal(child.pid) is seen
        finally:
            child.kill()


def test_nothing_is_seen_of_a_process_that_is_not_there() -> None:
    assert crash_signal(2**22 + 1) is None
